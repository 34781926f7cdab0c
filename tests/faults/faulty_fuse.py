"""A pass-through file system in user space that goes wrong on demand, or loses power.

``python -m tests.faults.faulty_fuse BACKING MOUNT CONTROL [--volatile | --other-host | --direct]``

While a file of this name is in CONTROL:

- ``hang``: every operation waits, reads and stat included
- ``hang-writes``: whatever changes something waits
- ``EIO``, ``ENOSPC``, ``EDQUOT``, ``EROFS``, ``ESTALE``, ``ENOTSUP``, ``EINVAL``: what the file names
  (operations, one a line; empty: whatever changes something) fails with that error
- ``stale``: reading a file that was opened and has been replaced since fails with ESTALE, as where
  another host has replaced it
- ``slow``: what changes something takes so many seconds as the file says

With ``--volatile`` only what was fsynced is in BACKING: see `volatile`. With ``--direct`` the kernel
caches no contents, so that every read comes here. With ``--other-host`` it keeps names and attributes
for a few seconds, as of a directory that nobody else changes; who writes in BACKING is another host.
Needs libfuse and mfusepy.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mfusepy
from typing_extensions import override

from tests.faults.lab import KEPT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_SECONDS = 0.02
LOOKS = frozenset(["getattr", "readdir", "readlink", "statfs", "open", "read"])
CHANGES = frozenset(
    [
        *("create", "write", "truncate", "fsync", "fsyncdir", "rename", "link", "unlink"),
        *("mkdir", "rmdir", "chmod", "chown", "utimens"),
    ]
)
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "ESTALE", "ENOTSUP", "EINVAL")


class PassThrough(mfusepy.Operations):
    """All operations, on the directory behind."""

    use_ns = True

    def __init__(self, backing: Path, control: Path) -> None:
        self._root, self._control = str(backing), control
        for name in LOOKS | CHANGES:
            if name in dir(type(self)):
                setattr(self, name, self._or_wrong(name, getattr(self, name)))

    def _or_wrong(self, op: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def checked(*args: Any) -> Any:
            self._go_wrong(op)
            return method(*args)

        return checked

    def _go_wrong(self, op: str) -> None:
        while self._has("hang") or (op in CHANGES and self._has("hang-writes")):
            time.sleep(POLL_SECONDS)
        for name in ERRORS:
            if self._has(name) and op in (self._text(name).split() or CHANGES):
                raise OSError(getattr(errno, name), name)
        if op in CHANGES and self._has("slow"):
            time.sleep(float(self._text("slow") or 0))

    def _has(self, what: str) -> bool:
        return (self._control / what).exists()

    def _text(self, what: str) -> str:
        try:
            return (self._control / what).read_text()
        except FileNotFoundError:
            return ""

    def _full(self, path: str) -> str:
        return self._root + path

    # --- looking ------------------------------------------------------------------------------

    @override
    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._full(path))
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino", "st_blocks")
        times = {f"st_{one}time": getattr(status, f"st_{one}time_ns") for one in "amc"}
        return {name: getattr(status, name) for name in names} | times

    @override
    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._full(path))]

    @override
    def readlink(self, path: str) -> str:
        return os.readlink(self._full(path))

    @override
    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self._full(path))
        sizes = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_frsize")
        names = ("f_favail", "f_ffree", "f_files", "f_flag", "f_namemax")
        return {name: getattr(status, name) for name in (*sizes, *names)}

    @override
    def open(self, path: str, flags: int) -> int:
        return os.open(self._full(path), flags)

    @override
    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        if self._has("stale") and not os.fstat(fh).st_nlink:
            raise OSError(errno.ESTALE, "stale")
        return os.pread(fh, size, offset)

    @override
    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    # --- changing -----------------------------------------------------------------------------

    @override
    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._full(path), os.O_RDWR | os.O_CREAT, mode)

    @override
    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    @override
    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._full(path), length)
        return 0

    @override
    def fsync(self, path: str, datasync: int, fh: int) -> int:
        os.fsync(fh)
        return 0

    @override
    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        return 0

    @override
    def rename(self, old: str, new: str) -> int:
        os.rename(self._full(old), self._full(new))
        return 0

    @override
    def link(self, target: str, source: str) -> int:
        os.link(self._full(source), self._full(target))
        return 0

    @override
    def unlink(self, path: str) -> int:
        os.unlink(self._full(path))
        return 0

    @override
    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._full(path), mode)
        return 0

    @override
    def rmdir(self, path: str) -> int:
        os.rmdir(self._full(path))
        return 0

    @override
    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._full(path), mode)
        return 0

    @override
    def chown(self, path: str, uid: int, gid: int) -> int:
        os.chown(self._full(path), uid, gid)
        return 0

    @override
    def utimens(self, path: str, times: Any = None) -> int:
        os.utime(self._full(path), ns=times)
        return 0


def main() -> None:
    """Serve until it is unmounted."""
    backing, mount, control = map(Path, sys.argv[1:4])
    operations: PassThrough = PassThrough(backing, control)
    flags = sys.argv[4:]
    kept_seconds = KEPT_SECONDS if "--other-host" in flags else 0
    if "--volatile" in flags:
        from tests.faults.volatile import Volatile  # noqa: PLC0415  # it builds on this module

        operations = Volatile(backing, control)
    mfusepy.FUSE(
        operations,
        str(mount),
        foreground=True,
        nothreads=False,
        allow_other=True,
        attr_timeout=kept_seconds,
        entry_timeout=kept_seconds,
        direct_io="--direct" in flags,
    )


if __name__ == "__main__":
    main()

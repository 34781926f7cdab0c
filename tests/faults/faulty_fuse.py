"""A pass-through file system in user space that goes wrong on demand, or loses power.

``python -m tests.faults.faulty_fuse BACKING MOUNT CONTROL [--volatile]``

While a file of this name is in CONTROL:

- ``hang``: every operation waits, reads and stat included
- ``hang-writes``: whatever changes something waits
- ``EIO``, ``ENOSPC``, ``EDQUOT``, ``EROFS``, ``ESTALE``: what the file names (operations, one a line;
  empty: whatever changes something) fails with that error
- ``slow``: what changes something takes so many seconds as the file says

With ``--volatile`` only what was fsynced is in BACKING: see `volatile`. Needs libfuse and mfusepy.
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
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "ESTALE")


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
    if "--volatile" in sys.argv[4:]:
        from tests.faults.volatile import Volatile  # noqa: PLC0415  # it builds on this module

        operations = Volatile(backing, control)
    mfusepy.FUSE(
        operations,
        str(mount),
        foreground=True,
        nothreads=False,
        allow_other=True,
        attr_timeout=0,
        entry_timeout=0,
    )


if __name__ == "__main__":
    main()

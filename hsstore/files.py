"""Durable file operations: everything that reaches the disk of a store passes here.

The order that makes a file survive a power cut: write it under another name, fsync it, rename it,
fsync its directory. An fsync is never tried twice: after a failed one the kernel may have dropped
the pages, so the file has to be written again.

Network file systems have manners of their own. One that cannot fsync a directory, or start writing
a range, is used all the same: that is said once, and `unsupported` tells it to who keeps the record.
A file that was replaced by another host answers ESTALE, or keeps its old size for a while: it is read
again under its name, with attributes that are fresh.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import tempfile
import uuid
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hsstore.activity import operation
from hsstore.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
log = logging.getLogger(__name__)

PARTIAL_SUFFIX = ".partial"
"""Files that end so were never published; nobody reads them."""

_ADVICE = {
    errno.ENOSPC: "free space there, then run the same command again",
    errno.EDQUOT: "the quota is used up: raise it or free space, then run the same command again",
    errno.EROFS: "the file system is read-only: remount it writable, then run the same command again",
    errno.EACCES: "check the owner and mode of the directory",
    errno.EPERM: "check the owner and mode of the directory",
}
_NOT_SUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""How a file system says that it has no such operation. All else is a failure of the disk."""
_WRITE, _WRITE_AND_WAIT = 2, 7
"""Flags of sync_file_range(2), from <linux/fs.h>."""
_AT_FDCWD, _AT_STATX_FORCE_SYNC, _STATX_BASIC_STATS = -100, 0x2000, 0x7FF
"""From <linux/fcntl.h> and <linux/stat.h>."""
_FSYNC_OF_A_DIRECTORY = (
    "fsync a directory",
    "whether the newest names survive a power cut is up to its server. After one, run hsstore verify",
)
_SYNC_FILE_RANGE = (
    "start writing a range",
    "data is written when the kernel thinks fit, and at the latest by the fsync",
)
_unsupported: dict[tuple[int, str], str] = {}
"""What was said, by file system and operation."""


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the output file system into an `OutputError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise OutputError(_describe(error, path)) from error


def _describe(error: OSError, path: Path) -> str:
    advice = _ADVICE.get(error.errno or 0, "look at the disk, then run the same command again")
    space, has_inodes = _space(path)
    if error.errno == errno.ENOSPC and not has_inodes:
        advice = "it has no inodes left: remove files there, then run the same command again"
    return f"cannot write {path}: {error.strerror}{space}; {advice}"


def _space(path: Path) -> tuple[str, bool]:
    """Say how many bytes are free, and whether files can still be created."""
    try:
        status = os.statvfs(path if path.is_dir() else path.parent)
    except OSError:
        return "", True
    free, total = (blocks * status.f_frsize / 1e9 for blocks in (status.f_bavail, status.f_blocks))
    # A file system that does not count its inodes says 0 of 0.
    return f" ({free:.2f} GB free of {total:.2f} GB)", not status.f_files or status.f_favail > 0


def fsync_directory(directory: Path) -> None:
    """Make renames inside a directory durable, where the file system can."""
    with operation("fsync", directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            _accept_unsupported(error, descriptor, directory, *_FSYNC_OF_A_DIRECTORY)
        finally:
            os.close(descriptor)


def start_writing(descriptor: int, offset: int, size_bytes: int, path: Path) -> None:
    """Let the kernel begin to write a range of a file to the disk: the fsync has less to do then.

    Nothing is durable by this. Where it is not supported nothing happens.

    Raises
    ------
    OSError
        The disk failed.
    """
    _sync_file_range(descriptor, offset, size_bytes, _WRITE, path)


def wait_for_writing(descriptor: int, offset: int, size_bytes: int, path: Path) -> None:
    """Wait until a range of a file has been written, which still makes nothing durable.

    A writer that does so behind itself is as slow as its disk, and leaves the fsync little to do.
    Where it is not supported nothing happens.

    Raises
    ------
    OSError
        The disk failed; an fsync may not say so again.
    """
    _sync_file_range(descriptor, offset, size_bytes, _WRITE_AND_WAIT, path)


def _sync_file_range(descriptor: int, offset: int, size_bytes: int, flags: int, path: Path) -> None:
    where = (ctypes.c_int64(offset), ctypes.c_int64(size_bytes))
    with operation("write", path):
        if not _libc().sync_file_range(descriptor, *where, flags):
            return
        number = ctypes.get_errno()
        error = OSError(number, os.strerror(number), str(path))
        _accept_unsupported(error, descriptor, path, *_SYNC_FILE_RANGE)


def _accept_unsupported(
    error: OSError, descriptor: int, path: Path, what: str, meaning: str
) -> None:
    """Say once for each file system that it cannot do something; raise what is a real error."""
    if error.errno not in _NOT_SUPPORTED:
        raise error
    text = f"{path}: this file system cannot {what} ({error.strerror}): {meaning}"
    if _unsupported.setdefault((os.fstat(descriptor).st_dev, what), text) is text:
        log.warning(text)


def unsupported() -> tuple[str, ...]:
    """Return what file systems could not do for this process, as it was said."""
    return tuple(_unsupported.values())


def read_again_if_stale(read: Callable[[], T]) -> T:
    """Read by name, and once more where a file was replaced just then by another host (ESTALE)."""
    try:
        return read()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return read()


def write_durably(path: Path, data: bytes | memoryview) -> None:
    """Write a whole file so that it is either the old one or the new one, also after a crash."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PARTIAL_SUFFIX}")
    try:
        with operation("write", partial), partial.open("wb") as file:
            file.write(data)
            file.flush()
            with operation("fsync", partial):
                os.fsync(file.fileno())
        publish(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def publish(partial: Path, final: Path) -> None:
    """Give a finished, fsynced file its name, replacing an older one, durably."""
    with operation("rename", final):
        partial.rename(final)
    fsync_directory(final.parent)


def stage_parent(parent: Path | None) -> Path:
    """Return where what goes to an object store lies meanwhile: there, or where temporary files do."""
    return parent or Path(tempfile.gettempdir())


def make_directory(path: Path) -> None:
    """Create a directory, and the missing ones above it, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with operation("write", path):
        path.mkdir(exist_ok=True)
    fsync_directory(path.parent)


def rename_directory_without_replacing(source: Path, target: Path) -> bool:
    """Rename a directory; return False when the target exists and is not empty.

    rename(2) refuses to replace a directory that is not empty, so of several processes that
    build the same thing exactly one wins.
    """
    try:
        with operation("rename", target):
            source.rename(target)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        raise
    fsync_directory(target.parent)
    return True


def refresh_attributes(path: Path) -> None:
    """Have a network file system ask its server for a file's size and times, which it may keep."""
    _libc().statx(
        _AT_FDCWD,
        os.fsencode(path),
        _AT_STATX_FORCE_SYNC,
        _STATX_BASIC_STATS,
        ctypes.create_string_buffer(256),
    )


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

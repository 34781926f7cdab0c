"""Durable file operations: everything that reaches the disk of a store passes here.

The order that makes a file survive a power cut: write it under another name, fsync it, rename it,
fsync its directory. An fsync is never tried twice: after a failed one the kernel may have dropped
the pages, so the file has to be written again.
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hsstore.activity import operation
from hsstore.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTIAL_SUFFIX = ".partial"
"""Files that end so were never published; nobody reads them."""

_ADVICE = {
    errno.ENOSPC: "free space there, then run the same command again",
    errno.EDQUOT: "the quota is used up: raise it or free space, then run the same command again",
    errno.EROFS: "the file system is read-only: remount it writable, then run the same command again",
    errno.EACCES: "check the owner and mode of the directory",
    errno.EPERM: "check the owner and mode of the directory",
}


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
    """Make renames inside a directory durable."""
    with operation("fsync", directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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

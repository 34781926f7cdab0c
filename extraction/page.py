"""A page of shared memory that one process writes and anybody reads.

A small mapped file with a sequence lock: readers never block the writer, and still see the last
state when the writer hangs or is gone. Standard library only: helper processes start fast with it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

PAGE_BYTES: Final = 64 << 10
_HEADER: Final = struct.Struct("<QQ")  # sequence (odd while being written), length
CAPACITY_BYTES: Final = PAGE_BYTES - _HEADER.size
"""The longest content."""
_TRIES: Final = 100
_PAUSE_SECONDS: Final = 0.001


class Page:
    """A mapped page of an existing file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, PAGE_BYTES)
        finally:
            os.close(descriptor)

    def write(self, body: bytes) -> None:
        """Publish a content of at most `CAPACITY_BYTES`; what a killed writer left is no obstacle.

        Raises
        ------
        ValueError
            It is too long.
        """
        if len(body) > CAPACITY_BYTES:
            raise ValueError(f"{len(body)} bytes do not fit a page of {CAPACITY_BYTES}")
        sequence = _HEADER.unpack_from(self._map)[0] | 1
        _HEADER.pack_into(self._map, 0, sequence, 0)
        self._map[_HEADER.size : _HEADER.size + len(body)] = body
        _HEADER.pack_into(self._map, 0, sequence + 1, len(body))

    def read(self) -> bytes:
        """Return the last content; empty before the first, or when a writer died in a write."""
        for _ in range(_TRIES):
            sequence, length = _HEADER.unpack_from(self._map)
            body = bytes(self._map[_HEADER.size : _HEADER.size + length])
            if sequence % 2 == 0 and _HEADER.unpack_from(self._map)[0] == sequence:
                return body
            time.sleep(_PAUSE_SECONDS)
        return b""

    def close(self) -> None:
        """Drop the mapping."""
        self._map.close()


def allocate_page(descriptor: int) -> None:
    """Give a new file the memory of a page: an error here, not a SIGBUS later.

    Raises
    ------
    OSError
    """
    os.posix_fallocate(descriptor, 0, PAGE_BYTES)


def read_page(path: Path) -> bytes:
    """Read a page that may belong to anybody, without mapping it: its owner may truncate it.

    Empty where there is none, and as `Page.read`.

    Raises
    ------
    PermissionError
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    for _ in range(_TRIES):
        content = os.pread(descriptor, PAGE_BYTES, 0)
        if len(content) != PAGE_BYTES:
            return b""
        sequence, length = _HEADER.unpack_from(content)
        if sequence % 2 == 0 and os.pread(descriptor, 8, 0) == content[:8]:
            return content[_HEADER.size : _HEADER.size + length]
        time.sleep(_PAUSE_SECONDS)
    return b""


def is_locked(path: Path) -> bool:
    """Tell whether a live process holds the lock of a file; False where there is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False

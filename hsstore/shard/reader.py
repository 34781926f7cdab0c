"""Read chunks of one shard file by range."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hsstore.activity import operation
from hsstore.errors import CorruptStoreError
from hsstore.shard.index import MISSING, decode_index, index_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from hsstore.shard.index import Index


@dataclass(frozen=True, slots=True)
class ShardVersion:
    """What tells one published version of a shard from the next."""

    inode: int
    mtime_ns: int
    size_bytes: int


class ShardReader:
    """An open shard: its index, checked, and ranged reads. Safe to use from many threads.

    A shard is only ever replaced as a whole, so an open one stays consistent.

    Raises
    ------
    CorruptStoreError
        The file is missing, shorter than its index, or the index is damaged.
    """

    def __init__(self, path: Path, chunks: int) -> None:
        self.path = path
        self._descriptor = -1
        try:
            with operation("open", path):
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CorruptStoreError(f"{path.name}: shard is missing") from None
        self.version = _version(os.fstat(self._descriptor))
        self.index = self._read_index(chunks)

    def _read_index(self, chunks: int) -> Index:
        size = index_bytes(chunks)
        data_bytes = self.version.size_bytes - size
        encoded = os.pread(self._descriptor, size, data_bytes) if data_bytes >= 0 else b""
        try:
            return decode_index(encoded, chunks, data_bytes)
        except CorruptStoreError as error:
            raise CorruptStoreError(f"{self.path.name}: {error}") from None

    def _entry(self, chunk: int) -> tuple[int, int]:
        if not self.has(chunk):
            raise CorruptStoreError(f"{self.path.name}: chunk {chunk} is missing")
        return int(self.index[chunk, 0]), int(self.index[chunk, 1])

    def has(self, chunk: int) -> bool:
        """Say whether the chunk is in the shard."""
        return bool(self.index[chunk, 0] != MISSING)

    def read(self, chunk: int) -> bytes:
        """Read one encoded chunk.

        Raises
        ------
        CorruptStoreError
            The chunk is missing or cut short.
        """
        offset, nbytes = self._entry(chunk)
        with operation("read", self.path):
            encoded = os.pread(self._descriptor, nbytes, offset)
        if len(encoded) != nbytes:
            raise CorruptStoreError(f"{self.path.name}: chunk {chunk} is cut short")
        return encoded

    def expect(self, chunks: Sequence[int]) -> None:
        """Tell the kernel that these chunks are read next: one request for the whole range."""
        entries = self.index[list(chunks)]
        entries = entries[entries[:, 0] != MISSING]
        if len(entries) > 1:
            start = int(entries[:, 0].min())
            end = int(entries.sum(axis=1).max())
            os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_WILLNEED)

    def read_into(self, chunk: int, buffer: npt.NDArray[np.uint8]) -> int:
        """Read one encoded chunk into memory that is large enough; return its bytes.

        Raises
        ------
        CorruptStoreError
            The chunk is missing, cut short, or larger than the memory.
        """
        offset, nbytes = self._entry(chunk)
        if nbytes > buffer.size:
            raise CorruptStoreError(
                f"{self.path.name}: chunk {chunk} has {nbytes} bytes, more than any chunk can"
            )
        with operation("read", self.path):
            count = os.preadv(self._descriptor, [buffer[:nbytes].data], offset)
        if count != nbytes:
            raise CorruptStoreError(f"{self.path.name}: chunk {chunk} is cut short")
        return nbytes

    def close(self) -> None:
        """Close the file; also done when the last reference goes."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def shard_version(path: Path) -> ShardVersion:
    """Return the version of the shard that has this name now."""
    return _version(path.stat())


def _version(status: os.stat_result) -> ShardVersion:
    return ShardVersion(status.st_ino, status.st_mtime_ns, status.st_size)

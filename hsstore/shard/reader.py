"""Read chunks of one shard file by range."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hsstore.activity import operation
from hsstore.errors import CorruptStoreError
from hsstore.shard.index import decode_index, index_bytes
from hsstore.shard.indexed import IndexedShard, MissingShardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from hsstore.shard.index import Index
    from hsstore.shard.ranges import Read


@dataclass(frozen=True, slots=True)
class ShardVersion:
    """What tells one published version of a shard from the next."""

    inode: int
    mtime_ns: int
    size_bytes: int


class ShardReader(IndexedShard):
    """An open shard: its index, checked, and ranged reads. Safe to use from many threads.

    A shard is only ever replaced as a whole, so an open one stays consistent.

    Raises
    ------
    MissingShardError
        There is no such file.
    CorruptStoreError
        It is shorter than its index, or the index is damaged.
    OSError
        The disk failed; ESTALE: the file was replaced by another host. It names the file.
    """

    READ_BYTES: ClassVar[int] = 2 << 20
    """What a core copies out of the page cache is then still in its own cache when it decodes it. In one read
    of a whole sample it would not be, and nothing is decoded before the last byte is there."""
    GAP_BYTES: ClassVar[int] = 16 << 10

    _close = staticmethod(os.close)
    """Here, for readers that outlive the modules at an interpreter's end."""

    def __init__(self, path: Path, chunks: int) -> None:
        self.path, self.name = path, path.name
        self._descriptor = -1
        try:
            with operation("open", path):
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise MissingShardError(f"{path.name}: shard is missing") from None
        self.version = _version(os.fstat(self._descriptor))
        self.index = self._read_index(chunks)

    def _read_index(self, chunks: int) -> Index:
        size = index_bytes(chunks)
        data_bytes = self.version.size_bytes - size
        with self._reading():
            encoded = os.pread(self._descriptor, size, data_bytes) if data_bytes >= 0 else b""
        try:
            return decode_index(encoded, chunks, data_bytes)
        except CorruptStoreError as error:
            raise CorruptStoreError(f"{self.name}: {error}") from None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Name the file in what goes wrong: the kernel, given a descriptor, does not."""
        try:
            with operation("read", self.path):
                yield
        except OSError as error:
            error.filename = str(self.path)
            raise

    @property
    def modified(self) -> float:
        """When the file was published: seconds since 1970."""
        return self.version.mtime_ns / 1e9

    def read(self, chunk: int) -> bytes:
        """Read one encoded chunk.

        Raises
        ------
        CorruptStoreError
            The chunk is missing or cut short.
        """
        offset, nbytes = self._entry(chunk)
        with self._reading():
            encoded = os.pread(self._descriptor, nbytes, offset)
        if len(encoded) != nbytes:
            raise CorruptStoreError(f"{self.name}: chunk {chunk} is cut short")
        return encoded

    def read_all(self, chunks: Sequence[int]) -> Iterator[bytes]:
        """Yield encoded chunks; raises what `read` does."""
        return map(self.read, chunks)

    def is_cached(self, offset: int) -> bool:
        """Say whether the page cache has this byte, as far as can be known without waiting."""
        try:
            with self._reading():
                return bool(os.preadv(self._descriptor, [bytearray(1)], offset, os.RWF_NOWAIT))
        except OSError:  # not cached; not to be asked; or an error that the read itself will meet
            return False

    def expect(self, read: Read) -> None:
        """Tell the kernel that this is read next; nothing waits for the disk."""
        with self._reading():
            os.posix_fadvise(self._descriptor, read.offset, read.nbytes, os.POSIX_FADV_WILLNEED)

    def read_range(self, read: Read, buffer: npt.NDArray[np.uint8]) -> None:
        """Read a range into the first bytes of `buffer`: all payload comes in here.

        Raises
        ------
        CorruptStoreError
            The file ends before.
        """
        got = 0
        with self._reading():
            while got < read.nbytes and (count := self._read_some(read, buffer, got)):
                got += count
        if got < read.nbytes:
            raise CorruptStoreError(
                f"{self.name}: cut short, {read.nbytes} bytes at {read.offset} are not there"
            )

    def _read_some(self, read: Read, buffer: npt.NDArray[np.uint8], got: int) -> int:
        return os.preadv(self._descriptor, [buffer[got : read.nbytes].data], read.offset + got)

    def close(self) -> None:
        """Close the file; also done when the last reference goes."""
        if self._descriptor >= 0:
            self._close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def shard_version(path: Path) -> ShardVersion:
    """Return the version of the shard that has this name now."""
    return _version(path.stat())


def _version(status: os.stat_result) -> ShardVersion:
    return ShardVersion(status.st_ino, status.st_mtime_ns, status.st_size)

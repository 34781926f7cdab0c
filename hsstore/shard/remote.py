"""Read chunks of one shard that is an object: ranges of it, as few as sensible, many at once.

An object can be replaced between two requests, and where chunks are not compressed one of another sample may have
the same place and size: so every range is asked for of the version whose index was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hsstore.errors import CorruptStoreError
from hsstore.objects import Request, read_many
from hsstore.shard.ahead import ReadAhead
from hsstore.shard.index import decode_index, index_bytes
from hsstore.shard.indexed import IndexedShard, MissingShardError
from hsstore.shard.ranges import Read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from hsstore.location import RemotePath
    from hsstore.objects import Answer

    Bytes = npt.NDArray[np.uint8]


class RemoteShard(IndexedShard):
    """A shard in an object store: its index, checked, and ranged reads. Safe to use from many threads.

    Raises
    ------
    MissingShardError
        There is no such object.
    CorruptStoreError
        It is shorter than its index, or the index is damaged.
    UnreachableError
    """

    READ_BYTES: ClassVar[int] = 1 << 40
    """A sample lies in one piece in its shard: it is one request, whatever its size."""
    GAP_BYTES: ClassVar[int] = 8 << 20
    """What comes in the time that another request may take: a tenth of a second."""

    def __init__(self, path: RemotePath, chunks: int) -> None:
        self.path, self.name = path, path.name
        size = index_bytes(chunks)
        self.version: str | None = None
        answer = self._get(-size)
        self.version = answer.version
        """Of the object: each range is of this one."""
        self.modified = answer.modified
        """When the object was put: seconds since 1970."""
        try:
            self.index = decode_index(answer.data, chunks, answer.size_bytes - size)
        except CorruptStoreError as error:
            raise CorruptStoreError(f"{path.name}: {error}") from None

    def _get(self, start: int, stop: int | None = None) -> Answer:
        try:
            return self.path.get(start, stop, self.version)
        except FileNotFoundError:
            raise MissingShardError(f"{self.name}: shard is missing") from None

    def request(self, read: Read) -> Request:
        """Return what to ask for; see `read_ranges`."""
        return Request(str(self.path), read.offset, read.offset + read.nbytes, self.version)

    def read(self, chunk: int) -> bytes:
        """Read one encoded chunk.

        Raises
        ------
        CorruptStoreError
            The chunk is missing or cut short.
        OSError
            ESTALE: the object was replaced.
        UnreachableError
        """
        (encoded,) = self.read_all([chunk])
        return encoded

    def read_all(self, chunks: Sequence[int]) -> Iterator[bytes]:
        """Yield encoded chunks, of which those that lie side by side come in few requests.

        Raises
        ------
        CorruptStoreError, OSError, UnreachableError
            As in `read`.
        """
        reads = [Read(*self._entry(chunk), ()) for chunk in chunks]
        stop = max((read.offset + read.nbytes for read in reads), default=0)
        ahead = ReadAhead()
        return (ahead.read(self, read, stop) for read in reads)

    def is_cached(self, _offset: int) -> bool:
        """Say that every byte is a request."""
        return False

    def expect(self, read: Read) -> None:
        """Do nothing: `read_ranges` has all of a sample under way together."""

    def read_range(self, read: Read, buffer: Bytes) -> None:
        """Read a range into the first bytes of `buffer`.

        Raises
        ------
        CorruptStoreError, OSError, UnreachableError
            As in `read`.
        """
        data = self.whole(self.get(read.offset, read.offset + read.nbytes), read)
        buffer[: read.nbytes] = np.frombuffer(data, np.uint8)

    def get(self, start: int, stop: int) -> bytes:
        """Read the bytes of a range that are there.

        Raises
        ------
        CorruptStoreError, OSError, UnreachableError
            As in `read`.
        """
        return self._get(start, stop).data

    def whole(self, data: bytes, read: Read) -> bytes:
        """Return what came of a read, if it is all of it.

        Raises
        ------
        CorruptStoreError
        """
        if len(data) != read.nbytes:
            raise CorruptStoreError(
                f"{self.name}: cut short, {read.nbytes} bytes at {read.offset} are not there"
            )
        return data


def read_ranges(shards: Sequence[RemoteShard], reads: Sequence[Read]) -> list[Bytes]:
    """Read ranges of shards side by side.

    Parameters
    ----------
    shards : sequence of RemoteShard
        The shard of each read.

    Returns
    -------
    list of uint8 (nbytes of each,)

    Raises
    ------
    CorruptStoreError, OSError, UnreachableError
        As `RemoteShard.read` does.
    """
    requests = [shard.request(read) for shard, read in zip(shards, reads, strict=True)]
    found = []
    for answer, shard, read in zip(read_many(requests), shards, reads, strict=True):
        if answer is None:
            raise MissingShardError(f"{shard.name}: shard is missing")
        found.append(np.frombuffer(shard.whole(answer.data, read), np.uint8))
    return found

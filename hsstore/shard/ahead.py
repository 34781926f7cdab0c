"""Go through shards in an object store range by range, without a request for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hsstore.shard.ranges import Read
    from hsstore.shard.remote import RemoteShard

AHEAD_BYTES = 16 << 20
"""Read at once."""


class ReadAhead:
    """The bytes behind a range come with it: it is they that are asked for next. One buffer; for one thread."""

    def __init__(self) -> None:
        self._shard: RemoteShard | None = None
        self._start = 0
        self._data = b""

    def read(self, shard: RemoteShard, read: Read, stop: int | None = None) -> bytes:
        """Read a range.

        Parameters
        ----------
        stop : int, optional
            The first byte that nobody will ask for; the end of the shard, if it is left out.

        Raises
        ------
        CorruptStoreError, OSError, UnreachableError
            As in `RemoteShard.read`.
        """
        end = read.offset + read.nbytes
        known = self._start + len(self._data)
        if shard is not self._shard or not self._start <= read.offset <= end <= known:
            ahead = read.offset + AHEAD_BYTES
            last = max(end, ahead if stop is None else min(ahead, stop))
            self._shard, self._start, self._data = shard, read.offset, b""  # frees the old bytes
            self._data = shard.get(read.offset, last)
        first = read.offset - self._start
        return shard.whole(self._data[first : first + read.nbytes], read)

"""What readers of shards have in common, wherever the bytes are: which chunks there are, how to read them best."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hsstore.errors import CorruptStoreError
from hsstore.shard.index import MISSING
from hsstore.shard.ranges import plan_reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hsstore.shard.index import Index
    from hsstore.shard.ranges import Read


class MissingShardError(CorruptStoreError):
    """There is no such shard."""


class IndexedShard:
    """A shard whose index was read.

    Attributes
    ----------
    name : str
        The file's, for messages.
    index : uint64 (chunks, 2)
    """

    READ_BYTES: ClassVar[int]
    """Chunks are joined up to this."""
    GAP_BYTES: ClassVar[int]
    """A hole between chunks that costs less than another read."""

    name: str
    index: Index

    def has(self, chunk: int) -> bool:
        """Say whether the chunk is in the shard."""
        return bool(self.index[chunk, 0] != MISSING)

    def _entry(self, chunk: int) -> tuple[int, int]:
        if not self.has(chunk):
            raise CorruptStoreError(f"{self.name}: chunk {chunk} is missing")
        return int(self.index[chunk, 0]), int(self.index[chunk, 1])

    def plan(self, chunks: Sequence[int], largest_bytes: int) -> list[Read]:
        """Say how these chunks are read best.

        Parameters
        ----------
        largest_bytes : int
            What a chunk can have at most.

        Raises
        ------
        CorruptStoreError
            One is missing, or larger than any chunk can be.
        """
        entries = self.index[list(chunks)]
        if missing := np.flatnonzero(entries[:, 0] == MISSING).tolist():
            raise CorruptStoreError(f"{self.name}: chunk {chunks[missing[0]]} is missing")
        if large := np.flatnonzero(entries[:, 1] > np.uint64(largest_bytes)).tolist():
            size = entries[large[0], 1]
            raise CorruptStoreError(
                f"{self.name}: chunk {chunks[large[0]]} has {size} bytes, more than any can"
            )
        return plan_reads(entries, most_bytes=self.READ_BYTES, gap_bytes=self.GAP_BYTES)

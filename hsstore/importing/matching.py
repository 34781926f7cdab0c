"""Which sample of a store a file holds: found by its tokens, never by its number.

Numbers of files lie: a rerun of a generator numbers its files anew, and several processes interleave theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.store import Store


class TokenIndex:
    """Finds samples of a store by their tokens; 16 bytes of memory for each."""

    def __init__(self, store: Store) -> None:
        self._store = store
        hashes = np.empty(len(store), np.uint64)
        for index in range(store.layout.blocks):
            samples = store.layout.block(index).samples
            for sample, tokens in store.input_ids_of(samples).items():
                hashes[sample] = _hash(tokens)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        self._lengths = np.unique(store.length)

    def find(self, ids: npt.NDArray[np.int32]) -> tuple[list[int], int]:
        """Return the samples that have these tokens, and how many rows of the file are theirs.

        Some writers save a batch as it was computed: behind a sample's tokens come those that it was padded
        with, one and the same.

        Parameters
        ----------
        ids : int32 (T,)

        Returns
        -------
        samples : list of int
            Ascending; empty where there is none.
        rows : int
        """
        if found := self._equal(ids):
            return found, len(ids)
        others = np.flatnonzero(ids != ids[-1])
        shortest = max(int(others[-1]) + 1 if others.size else 0, 1)
        first, end = np.searchsorted(self._lengths, [shortest, len(ids)])
        for rows in self._lengths[first:end][::-1].tolist():
            if found := self._equal(ids[:rows]):
                return found, rows
        return [], 0

    def _equal(self, ids: npt.NDArray[np.int32]) -> list[int]:
        wanted = np.uint64(_hash(ids))
        first = int(np.searchsorted(self._hashes, wanted))
        end = int(np.searchsorted(self._hashes, wanted, side="right"))
        found: list[int] = self._order[first:end].tolist()
        return [sample for sample in found if np.array_equal(self._store.input_ids(sample), ids)]


def _hash(ids: npt.NDArray[np.int32]) -> int:
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(ids, dtype="<i4").data)

"""Which samples go into the destination, and in which order. Pure: numpy arrays in, numpy arrays out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.consolidate.request import Order

    Int64s = npt.NDArray[np.int64]
    Ids = npt.NDArray[np.bytes_]


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of the sources, each by where it is now.

    Attributes
    ----------
    source : uint16 (k,)
        Number of the source.
    sample : int64 (k,)
        Index in that source.
    ids : bytes (k,)
        UTF-8.
    digest : uint64 (k,)
        Of their states.
    length : int64 (k,)
        Tokens.
    """

    source: npt.NDArray[np.uint16]
    sample: Int64s
    ids: Ids
    digest: npt.NDArray[np.uint64]
    length: Int64s

    def __len__(self) -> int:
        """Count them."""
        return len(self.source)

    def take(self, places: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Samples:
        """Return some of them, in the order of `places`."""
        return Samples(
            self.source[places],
            self.sample[places],
            self.ids[places],
            self.digest[places],
            self.length[places],
        )


def first_with_id(ids: Ids) -> Int64s:
    """Return, for each sample, the place of the first one with its id, shape (k,).

    >>> first_with_id(np.array([b"a", b"b", b"a", b"c", b"b"])).tolist()
    [0, 1, 0, 3, 1]
    """
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.asarray(first[inverse.ravel()], dtype=np.int64)


def in_order(samples: Samples, dataset: npt.NDArray[np.uint16], order: Order, seed: int) -> Int64s:
    """Return the places of the samples in the order that was asked for.

    Parameters
    ----------
    dataset : uint16 (sources,)
        The first source that was made from the same dataset: its samples belong between one another.
    """
    by_dataset = np.lexsort((samples.sample, dataset[samples.source]))
    if order == "dataset":
        return by_dataset
    if order == "length":
        key = samples.length[by_dataset]
    else:
        hashes = (xxhash.xxh3_64_intdigest(one, seed) for one in samples.ids[by_dataset].tolist())
        key = np.fromiter(hashes, np.uint64, len(samples))
    return by_dataset[np.argsort(key, kind="stable")]


def unknown_ids(wanted: frozenset[bytes], known: list[Ids]) -> list[bytes]:
    """Return the wanted ids that no source has, complete or not, sorted."""
    left = np.array(sorted(wanted), dtype=np.bytes_)
    for ids in known:
        left = left[~np.isin(left, ids)]
    return [bytes(one) for one in left]

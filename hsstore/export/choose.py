"""Which samples are exported: the complete ones that are wanted, in the order of the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from hsstore.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.store import Store

    Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is written, and what is not there to be written.

    Attributes
    ----------
    samples : int64 (n,)
        Ascending.
    """

    samples: Int64s
    pending: int
    failed: int


def choose(store: Store, split: str | None, ids: frozenset[bytes] | None) -> Choice:
    """Choose samples.

    Raises
    ------
    InputError
        There is no such split or id.
    """
    wanted = _of_split(store, split) & _of_ids(store, ids)
    state = store.completion()
    return Choice(
        np.flatnonzero(wanted & state.complete),
        int((wanted & state.pending).sum()),
        int((wanted & (state.failed != 0) & ~state.complete).sum()),
    )


def _of_split(store: Store, split: str | None) -> npt.NDArray[np.bool_]:
    if split is None:
        return np.ones(len(store), np.bool_)
    names = store.spec.dataset.split_names
    if split not in names:
        raise InputError(f"{store.path}: no split {split!r}; there are {list(names)}")
    return np.asarray(store.plan_array("split") == names.index(split))


def _of_ids(store: Store, ids: frozenset[bytes] | None) -> npt.NDArray[np.bool_]:
    if ids is None:
        return np.ones(len(store), np.bool_)
    packed = np.ascontiguousarray(store.plan_array("sample_id"))
    mine = packed.view(f"S{packed.shape[1]}").ravel()
    if unknown := ids.difference(mine.tolist()):
        shown = min(unknown).decode(errors="replace")
        raise InputError(f"{store.path}: no sample {shown!r} ({len(unknown):,} such ids)")
    return np.isin(mine, np.array(list(ids)))


def to_ranges(samples: Int64s) -> tuple[tuple[int, int], ...]:
    """Write ascending samples as ranges (first, end).

    >>> to_ranges(np.array([0, 1, 2, 5]))
    ((0, 3), (5, 6))
    """
    if not len(samples):
        return ()
    cuts = np.flatnonzero(np.diff(samples) != 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(samples, cuts))


def from_ranges(ranges: tuple[tuple[int, int], ...]) -> Int64s:
    """Read what `to_ranges` wrote."""
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(*one) for one in ranges)])


def states_hash(store: Store, samples: Int64s) -> str:
    """Hash the digests of samples: equal while nobody writes other states of them."""
    return xxhash.xxh3_128_hexdigest(store.completion().digest[samples].tobytes())

"""Parts of a store's samples: those of a split, and how a choice is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.store import Store

    Int64s = npt.NDArray[np.int64]


def of_split(store: Store, split: str | None) -> npt.NDArray[np.bool_]:
    """Return which samples are of a split, shape (n,); all, if none is named.

    Raises
    ------
    InputError
        There is no such split.
    """
    if split is None:
        return np.ones(len(store), np.bool_)
    names = store.spec.dataset.split_names
    if split not in names:
        raise InputError(f"{store.location}: no split {split!r}; there are {list(names)}")
    return np.asarray(store.plan_array("split") == names.index(split))


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

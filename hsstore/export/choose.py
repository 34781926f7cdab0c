"""Which samples are exported: the complete ones that are wanted, in the order of the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from hsstore.errors import InputError
from hsstore.subset import of_split

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
    wanted = of_split(store, split) & _of_ids(store, ids)
    state = store.completion()
    return Choice(
        np.flatnonzero(wanted & state.complete),
        int((wanted & state.pending).sum()),
        int((wanted & (state.failed != 0) & ~state.complete).sum()),
    )


def _of_ids(store: Store, ids: frozenset[bytes] | None) -> npt.NDArray[np.bool_]:
    if ids is None:
        return np.ones(len(store), np.bool_)
    mine = store.sample_ids()
    if unknown := ids.difference(mine.tolist()):
        shown = min(unknown).decode(errors="replace")
        raise InputError(f"{store.location}: no sample {shown!r} ({len(unknown):,} such ids)")
    return np.isin(mine, np.array(list(ids)))


def states_hash(store: Store, samples: Int64s) -> str:
    """Hash the digests of samples: equal while nobody writes other states of them."""
    return xxhash.xxh3_128_hexdigest(store.completion().digest[samples].tobytes())

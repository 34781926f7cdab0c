"""The draft model's vocabulary: the tokens that the store supervises most often."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from hsstore.errors import InputError
from hsstore.loaders.selection import completeness
from hsstore.store import Store
from hsstore.subset import of_split

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from hsstore.loaders.selection import Bools
    from hsstore.location import Location

WINDOW_ROWS = 1 << 22
"""Rows that are counted at once."""


class DraftVocabulary(NamedTuple):
    """The maps that SpecForge, speculators, EAGLE and TorchSpec use."""

    d2t: torch.Tensor
    """int64 [draft vocabulary]: offsets; draft id `i` is the token `i + d2t[i]`."""
    t2d: torch.Tensor
    """bool [target vocabulary]: whether the draft model has this token."""


def draft_vocabulary(
    store: Store | str | Location, size: int, target_size: int, *, split: str | None = None
) -> DraftVocabulary:
    """Choose the tokens of a draft vocabulary.

    Those that are supervised most often in the complete samples of the store; of equally frequent ones
    those with the smaller id, also where the store has fewer than `size` different tokens.

    Parameters
    ----------
    size : int
        Tokens of the draft model.
    target_size : int
        Tokens of the target model: `vocab_size` of its config.json.
    split : str, optional
        Count samples of this split alone.

    Raises
    ------
    InputError
        The store has tokens that the target has not, or the draft would have more than the target.
    """
    store = store if isinstance(store, Store) else Store.open(store)
    if not 1 <= size <= target_size:
        raise InputError(f"a draft vocabulary of {size} tokens, of a target with {target_size}")
    chosen = of_split(store, split) & completeness(store)[0]
    return choose_tokens(supervised_counts(store, chosen, target_size), size)


def choose_tokens(counts: npt.NDArray[np.int64], size: int) -> DraftVocabulary:
    """Choose the tokens that are counted most often, as `draft_vocabulary` does.

    Parameters
    ----------
    counts : int64 (target vocabulary,)
    size : int
        At most as many as the target has.
    """
    chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
    t2d = np.zeros(len(counts), np.bool_)
    t2d[chosen] = True
    return DraftVocabulary(torch.from_numpy(chosen - np.arange(size)), torch.from_numpy(t2d))


def supervised_counts(store: Store, chosen: Bools, target_size: int) -> npt.NDArray[np.int64]:
    """Count how often each token is supervised in some samples, bool (n,).

    Raises
    ------
    InputError
        They have tokens that the target has not.
    """
    counts = np.zeros(target_size, np.int64)
    for where, wanted in _windows(store, chosen):
        ids = store.plan_array("input_ids", where)
        supervised = ids[wanted & (store.plan_array("loss_mask", where) != 0)]
        if len(supervised) and not 0 <= supervised.min() <= supervised.max() < target_size:
            raise InputError(
                f"{store.location}: it has tokens {supervised.min()} to {supervised.max()}, but the target "
                f"model has {target_size}"
            )
        counts += np.bincount(supervised, minlength=target_size)
    return counts


def _windows(store: Store, chosen: Bools) -> Iterator[tuple[slice, Bools]]:
    """Yield windows of the row axis, and which of their rows are those of the chosen samples."""
    start = store.plan_array("row_start")
    end = start + store.length
    for first in range(0, int(end[-1]), WINDOW_ROWS):
        where = slice(first, min(first + WINDOW_ROWS, int(end[-1])))
        inside = chosen & (end > where.start) & (start < where.stop)
        change = np.zeros(where.stop - where.start + 1, np.int64)
        np.add.at(change, np.maximum(start[inside], where.start) - where.start, 1)
        np.add.at(change, np.minimum(end[inside], where.stop) - where.start, -1)
        yield where, np.cumsum(change[:-1]) > 0

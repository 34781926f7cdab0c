"""The samples that an epoch goes through, and what its plan needs to know of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import InputError
from hsstore.loaders.order import EpochPlan, plan_by_block, plan_epoch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.loaders.order import Cutting, Int64s, Shuffle
    from hsstore.loaders.selection import Bools
    from hsstore.store import Store


@dataclass(frozen=True, slots=True)
class Table:
    """Samples, ascending, that give at least one row.

    Attributes
    ----------
    sample, block, rows : int64 (n,)
        Index in the store, block, and rows in a batch.
    """

    sample: Int64s
    block: Int64s
    rows: Int64s

    @classmethod
    def of(cls, store: Store, chosen: Bools, cutting: Cutting) -> Table:
        """Look the chosen samples up in the plan.

        Raises
        ------
        InputError
            None of them gives a row.
        """
        rows = cutting.rows(store.length)
        sample = np.flatnonzero(chosen & (rows > 0))
        if not len(sample):
            raise InputError(
                f"{store.location}: no sample to train on ({int(chosen.sum())} chosen, none of them of "
                "two tokens): see hsstore status"
            )
        block = np.searchsorted(store.layout.block_sample, sample, side="right") - 1
        return cls(sample, block, rows[sample])

    def plan(self, cutting: Cutting, shuffle: Shuffle | None, *, by_block: bool) -> EpochPlan:
        """Plan an epoch over them."""
        function = plan_by_block if by_block else plan_epoch
        return function(self.block, self.rows, cutting, shuffle)

    def batch_rows(self, plan: EpochPlan, cutting: Cutting) -> Iterator[int]:
        """Yield the rows of each batch, padding included: lines times their length."""
        if cutting.pack_rows is not None:
            yield from [cutting.pack_rows] * len(plan)
            return
        rows = self.rows[plan.order]
        longest = np.maximum.reduceat(rows, plan.bounds[:-1])
        yield from (longest * np.diff(plan.bounds)).tolist()

"""Which samples are asked for together, and how many blocks may be open at once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.layout import Layout

MIN_OPEN_BLOCKS = 4
MAX_OPEN_BLOCKS = 64


def by_block(layout: Layout, pending: npt.NDArray[np.int64]) -> list[tuple[int, list[int]]]:
    """Group pending samples, ascending, by the block that they belong to."""
    block_of = layout.block_sample.searchsorted(pending, side="right") - 1
    blocks, first = np.unique(block_of, return_index=True)
    groups = np.split(pending, first[1:])
    return [(int(b), g.tolist()) for b, g in zip(blocks, groups, strict=True)]


def open_cap(waiting: int, max_in_flight: int) -> int:
    """Return how many blocks may be open: few, but enough to keep the server busy.

    Parameters
    ----------
    waiting : int
        Samples of open blocks that have not come.
    """
    return MIN_OPEN_BLOCKS if waiting >= 2 * max_in_flight else MAX_OPEN_BLOCKS

"""Which samples are asked for together, in which order, and how many blocks may be open. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    import numpy as np
    import numpy.typing as npt

    from hsstore.layout import Layout

MIN_OPEN_BLOCKS = 4
MAX_OPEN_BLOCKS = 64


def by_block(layout: Layout, pending: npt.NDArray[np.int64]) -> Iterator[tuple[int, list[int]]]:
    """Yield each block that has pending samples, given in ascending order, and those samples."""
    first = 0
    while first < len(pending):
        block = layout.block_of(int(pending[first]))
        end = int(pending.searchsorted(layout.block_sample[block + 1]))
        yield block, pending[first:end].tolist()
        first = end


def span_order(
    spans: Iterable[int], worker: int, workers: int, *, first: Container[int] = ()
) -> list[int]:
    """Return spans in the order in which a worker comes to them.

    Its own are every n-th of the store. Those of the others come last, from the far end, so that it
    meets their owners late.

    Parameters
    ----------
    first : container of int
        To begin with, whosesoever they are.
    """
    ascending = sorted(spans)
    preferred = [span for span in ascending if span in first]
    own = [span for span in ascending if span % workers == worker and span not in first]
    others = [span for span in ascending if span % workers != worker and span not in first]
    return [*preferred, *own, *reversed(others)]


def open_cap(waiting: int, max_in_flight: int) -> int:
    """Return how many blocks may be open: few, but enough to keep the server busy.

    Parameters
    ----------
    waiting : int
        Samples of open blocks that have not come.
    """
    return MIN_OPEN_BLOCKS if waiting >= 2 * max_in_flight else MAX_OPEN_BLOCKS

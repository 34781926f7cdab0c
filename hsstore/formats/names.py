"""Ids of samples, many of them: single ones cost milliseconds each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.store import Store

WINDOW = 1 << 14
"""Ids that are read, and kept, together: those of neighbours are asked for one after the other."""


class SampleNames:
    """Gives the ids of a store's samples; safe to use from many threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._window: tuple[int, npt.NDArray[np.bytes_]] = (-1, np.zeros(0, "S1"))

    def __call__(self, sample: int) -> str:
        """Return the id of a sample."""
        number, inside = divmod(sample, WINDOW)
        window = self._window  # another thread may replace it meanwhile
        if window[0] != number:
            where = slice(number * WINDOW, (number + 1) * WINDOW)
            window = self._window = (number, self._store.sample_ids(where))
        return bytes(window[1][inside]).decode()

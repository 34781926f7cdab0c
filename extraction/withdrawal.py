"""Take bits back that this run has set: its samples are pending again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import RefusedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.claims import Claims
    from hsstore.store import Store

TAKE_TRIES, TAKE_SECONDS = 10, 0.5


def withdraw(store: Store, claims: Claims, samples: npt.NDArray[np.int64]) -> list[int]:
    """Make complete samples pending again, as far as their spans can be had.

    Returns
    -------
    list of int
        Those that are complete still: another worker has their spans.

    Raises
    ------
    OutputError
    """
    left: list[int] = []
    spans = samples // store.spec.layout.span_samples
    for span in np.unique(spans).tolist():
        here = samples[spans == span]
        if _take_again(claims, span):
            store.withdraw(here)
        else:
            left += here.tolist()
    return left


def _take_again(claims: Claims, span: int) -> bool:
    """Claim what a worker gives back when it is full; others who look have it for a moment."""
    for _ in range(TAKE_TRIES):
        try:
            claims.take_again(span)
        except RefusedError:
            time.sleep(TAKE_SECONDS)
        else:
            return True
    return False

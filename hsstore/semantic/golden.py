"""Compare the golden states: what the server computes for a short prefix, asked for alone.

`extract` takes them when it makes a store, keeps them in it, and takes them again in every run. So a
fault of the samples that is the same in all of them shows, as long as the server did not have it when it was
asked for one request alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import CorruptStoreError
from hsstore.semantic.floats import to_float32
from hsstore.semantic.prefix import PREFIX_ROWS, compare, noise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from hsstore.semantic.prefix import Reference
    from hsstore.store import Store

TOLERANCE = 0.05
"""Relative difference (2-norm) of a slot that rounding cannot explain: that of the handshake."""


def golden_states(store: Store) -> npt.NDArray[np.float32] | None:
    """Return a store's golden states, float32 (n, slots, hidden); None where no server was asked."""
    if not store.spec.golden_input_ids:
        return None
    bits = store.plan_array("golden").view(store.bits)
    return to_float32(bits, store.spec.model.dtype)


def other_runs(store: Store) -> Iterator[tuple[str, int, float]]:
    """Yield runs whose golden states are not the store's: the run, the worst slot, the difference.

    Needs no model. Runs without golden states, which were killed early, are passed over.
    """
    golden = golden_states(store)
    if golden is None:
        return
    size = np.maximum(np.linalg.norm(golden, axis=(0, 2)), 1e-30)
    for record in store.runs():
        try:
            bits = store.plan_array(f"runs/{record.run}/golden").view(store.bits)
        except (CorruptStoreError, KeyError, OSError):
            continue
        states = to_float32(bits, store.spec.model.dtype)
        if states.shape != golden.shape:
            continue
        away = np.linalg.norm(states - golden, axis=(0, 2)) / size
        worst = int(away.argmax())
        if away[worst] > TOLERANCE:
            yield record.run, worst, float(away[worst])


def other_samples(store: Store, references: Sequence[Reference]) -> dict[int, float] | None:
    """Compare the golden states with those of samples that begin with the same tokens.

    Returns
    -------
    dict or None
        Differing slots, and by how much; None where no samples begin so.
    """
    golden = golden_states(store)
    if golden is None:
        return None
    ids = np.array(store.spec.golden_input_ids[:PREFIX_ROWS], np.int32)
    for reference in references:
        count = len(reference.ids)
        if reference.fits(ids):
            error = np.diag(compare(golden[:count], reference.states).error)
            limits = noise(store.spec.model)
            return {
                slot: float(error[slot]) for slot in range(len(error)) if error[slot] > limits[slot]
            }
    return None

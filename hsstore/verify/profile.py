"""What the report shows besides findings: coverage, lengths, norms; all of a fixed size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hsstore.report import Coverage, Lengths, SlotNorms
from hsstore.verify.values import BINS_AN_OCTAVE, LEAST_OCTAVE, OCTAVES

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.spec import Model

    Marks = npt.NDArray[np.bool_]

PIECES = 1200
"""Of the coverage map."""
LENGTH_BINS_AN_OCTAVE = 4


def coverage(complete: Marks, failed: Marks, bad: Marks) -> Coverage:
    """Count marks, bool (samples,), in equal pieces of the store."""
    step = max(-(-len(complete) // PIECES), 1)
    starts = np.arange(0, len(complete), step)

    def counted(marks: Marks) -> tuple[int, ...]:
        return tuple(np.add.reduceat(marks, starts, dtype=np.int64).tolist())

    return Coverage(
        samples_a_piece=step, complete=counted(complete), failed=counted(failed), bad=counted(bad)
    )


def lengths(length: npt.NDArray[np.int32], complete: Marks) -> Lengths:
    """Count samples by their tokens, in bins that grow with the length."""
    octaves = np.log2([length.min(), length.max()])
    first, last = np.floor(octaves * LENGTH_BINS_AN_OCTAVE)
    edges = np.unique(
        np.ceil(2 ** (np.arange(first, last + 2) / LENGTH_BINS_AN_OCTAVE)).astype(int)
    )
    edges[-1] = max(edges[-1], length.max() + 1)

    def counted(some: npt.NDArray[np.int32]) -> tuple[int, ...]:
        return tuple(np.histogram(some, edges)[0].tolist())

    return Lengths(
        edges=tuple(edges.tolist()),
        samples=counted(length),
        complete=counted(length[complete]),
    )


def slot_norms(norms: npt.NDArray[np.int64], model: Model) -> tuple[SlotNorms, ...]:
    """Sum up the norms of every slot.

    Parameters
    ----------
    norms : int64 (slots, NORM_BINS)
        Rows by norm, as `Values` counts them.
    """
    layers = [*model.layers, *[None] * (model.slots - len(model.layers))]
    return tuple(
        SlotNorms(
            slot=slot,
            layer=layer,
            rows=int(bins.sum()),
            p01=_quantile(bins, 0.01),
            median=_quantile(bins, 0.5),
            p99=_quantile(bins, 0.99),
            largest=_quantile(bins, 1.0),
            histogram=tuple(bins.reshape(OCTAVES, BINS_AN_OCTAVE).sum(axis=1).tolist()),
        )
        for slot, (layer, bins) in enumerate(zip(layers, norms, strict=True))
        if bins.any()
    )


def _quantile(bins: npt.NDArray[np.int64], share: float) -> float:
    """Return the middle of the bin that a quantile falls into: exact to 5 %."""
    number = int(np.searchsorted(np.cumsum(bins), max(share * bins.sum(), 1)))
    return float(2 ** ((number + 0.5) / BINS_AN_OCTAVE + LEAST_OCTAVE))

"""Where the rows of a suspicious sample belong: at every distance from where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsstore.semantic.contrast import SKIPPED_ROWS
from hsstore.semantic.floats import to_float32
from hsstore.semantic.identity import features
from hsstore.semantic.measure import row_rms

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from hsstore.semantic.context import Context

ROWS = 192
"""Of a sample that are looked at."""
LEAST_ROWS = 48
"""That must stand behind a distance, for it to be taken."""
TOKENS = 4096
"""Compared at once."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of one slot fit best."""

    away: int
    """Row t fits token t + away (or the one behind it, for the final state)."""
    best: float
    """Mean fit there, less the mean over all distances."""
    here: float
    """The same where they stand."""


def find_place(context: Context, sample: int, slot: int) -> Place | None:
    """Compare rows of one slot with the tokens of the sample at every distance.

    None where the sample is too short, or the slot cannot be compared.
    """
    ids = context.ids(sample)
    final = slot == context.auxiliary
    stop = len(ids) - final
    if stop - SKIPPED_ROWS < LEAST_ROWS:
        return None
    rows = np.unique(np.linspace(SKIPPED_ROWS, stop - 1, ROWS).astype(np.int64))
    values = _read_rows(context, sample, slot, rows)
    score = (
        _final_score(context, values) if final else _auxiliary_score(context, sample, slot, values)
    )
    if score is None:
        return None
    total, count = np.zeros(2 * len(ids)), np.zeros(2 * len(ids))
    for first in range(0, len(ids), TOKENS):
        scores = score(ids[first : first + TOKENS])
        for at, row in enumerate((rows + final).tolist()):
            where = slice(len(ids) + first - row, len(ids) + first - row + scores.shape[1])
            total[where] += scores[at]
            count[where] += 1
    return _best(total, count, len(ids))


def _best(
    total: npt.NDArray[np.float64], count: npt.NDArray[np.float64], zero: int
) -> Place | None:
    enough = count >= LEAST_ROWS
    mean = np.where(enough, total / np.maximum(count, 1), -np.inf)
    background = float(mean[enough].mean())
    best = int(mean.argmax())
    return Place(best - zero, float(mean[best]) - background, float(mean[zero]) - background)


def _read_rows(
    context: Context, sample: int, slot: int, rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Read rows of a slot, piece by piece, shape (n, hidden)."""
    parts = []
    size = context.piece_rows
    for piece in np.unique(rows // size).tolist():
        here = rows[rows // size == piece] - piece * size
        bits = context.read(sample, slice(piece * size, piece * size + int(here[-1]) + 1))
        parts.append(to_float32(bits[here, slot], context.model.dtype))
    return np.nan_to_num(np.concatenate(parts), nan=0, posinf=0, neginf=0)


def _auxiliary_score(
    context: Context, sample: int, slot: int, values: npt.NDArray[np.float32]
) -> Callable[[npt.NDArray[np.int32]], npt.NDArray[np.float32]] | None:
    own_map = context.map_of(slot, sample)
    if own_map is None:
        return None
    guess = own_map.guess(features(values, row_rms(values)))
    return lambda ids: np.asarray(guess @ context.codes(ids).T)


def _final_score(
    context: Context, values: npt.NDArray[np.float32]
) -> Callable[[npt.NDArray[np.int32]], npt.NDArray[np.float32]] | None:
    loss = context.loss
    if loss is None:
        return None
    final = values if context.model.final == "post-norm" else context.norm.apply(values)
    others = np.logaddexp.reduce(final @ loss.negatives.T, axis=1)[:, None]

    def score(ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        logits = final @ loss.output.rows(ids).T
        return np.asarray(logits - np.logaddexp(logits, others))

    return score

"""What is wrong with a store as a whole, by what holds in any store, whatever its other samples are like.

Limits of the store's own population say nothing where all samples have the same fault.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import CorruptStoreError, NotExtractedError
from hsstore.report import SemanticBad, SemanticKind
from hsstore.semantic.align import find_place
from hsstore.semantic.blas import one_blas_thread
from hsstore.semantic.fit import OWN, SHIFTS
from hsstore.semantic.golden import other_runs, other_samples
from hsstore.semantic.identity import CHANNELS
from hsstore.semantic.limits import LEAST_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from hsstore.semantic.context import Context
    from hsstore.semantic.fit import Learned
    from hsstore.semantic.limits import Limits

LEAST_NATS = 1.0
"""By which final states tell the next token from far ones, in the median of samples. Of 24 samples of SmolLM2 it was 10; of
the same with each other's final states 0.3, which is what their shared beginning gives."""
LEAST_TOLD = 0.1
"""Mean cosine of an auxiliary slot with its own token or that of a neighbour. Of the same samples 0.6 to 0.8; of swapped
ones 0.06."""
ROWS_A_CHANNEL = 4
"""So many rows fit a map that says something of rows that it has not seen."""
PLACED_SAMPLES = 9
"""In which it is looked where the rows of a slot belong."""


def of_the_store(context: Context, learned: Learned, limits: Limits) -> Iterator[SemanticBad]:
    """Yield what is wrong with the store as a whole."""
    yield from judge_slots(learned, context.model.hidden)
    if context.has_final:
        yield from _final_state(context, limits)
    yield from _golden_states(context, learned)


def judge_slots(learned: Learned, hidden: int) -> Iterator[SemanticBad]:
    """Yield auxiliary slots that tell the tokens beside theirs better, or none at all.

    Of a model wider than what maps look at it is not known how little a good slot may tell.
    """
    is_known = hidden <= CHANNELS and learned.rows >= ROWS_A_CHANNEL * hidden
    for slot, fit in enumerate(learned.fit):
        if not np.isfinite(fit).all():
            continue
        best = int(fit.argmax())
        if fit[best] < LEAST_TOLD:
            if is_known:
                detail = (
                    f"in the store as a whole, slot {slot} tells neither its own token nor a neighbour's "
                    f"(mean cosine {fit[OWN]:.2f}, and {fit[best]:.2f} at best)"
                )
                yield _bad(SemanticKind.WRONG_TOKENS, (slot,), detail)
        elif best != OWN:
            detail = (
                f"in the store as a whole, slot {slot} tells the token at t {SHIFTS[best]:+d} best "
                f"(mean cosine {fit[best]:.2f}, and {fit[OWN]:.2f} for its own)"
            )
            yield _bad(SemanticKind.ROWS_SHIFTED, (slot,), detail)


def _final_state(context: Context, limits: Limits) -> Iterator[SemanticBad]:
    """Look whether final states tell the next token, as they do in any model that predicts anything."""
    whole, shift = limits.loss.whole, limits.loss.shift
    if whole.samples < LEAST_SAMPLES or (whole.typical >= LEAST_NATS and shift.typical > 0):
        return
    final = context.auxiliary
    detail = (
        f"in the store as a whole, final states do not tell the next token: in the median of samples, it is more likely "
        f"than far ones by {whole.typical:.2f} nats, and than the neighbours by {shift.typical:.2f}"
    )
    if away := _common_place(context, final):
        detail += f"; slot {final} holds row t {away:+d}"
        yield _bad(SemanticKind.ROWS_SHIFTED, (final,), detail)
    else:
        yield _bad(SemanticKind.WRONG_TOKENS, (final,), detail)


def _common_place(context: Context, slot: int) -> int:
    """Return where the rows of a slot belong in most of some samples; 0 where they are at no one distance."""
    complete = np.flatnonzero(context.store.completion().complete)
    found: Counter[int] = Counter()
    with one_blas_thread():
        for sample in _spread(complete, PLACED_SAMPLES).tolist():
            with suppress(CorruptStoreError, NotExtractedError, OSError):
                if (place := find_place(context, sample, slot)) is not None:
                    found[place.away] += 1
    away, count = found.most_common(1)[0] if found else (0, 0)
    return away if count > found.total() / 2 else 0


def _spread(samples: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Return so many of some samples, at equal distances.

    >>> _spread(np.arange(7), 3).tolist()
    [0, 3, 6]
    """
    if len(samples) <= count:
        return samples
    return samples[np.linspace(0, len(samples) - 1, count).astype(np.int64)]


def _golden_states(context: Context, learned: Learned) -> Iterator[SemanticBad]:
    for run, slot, away in other_runs(context.store):
        detail = (
            f"run {run}: its golden states differ from the store's by {away:.1%}: another server"
        )
        yield _bad(SemanticKind.WRONG_MODEL, (slot,), detail)
    others = other_samples(context.store, learned.fitted.references)
    if others:
        slots = ", ".join(f"slot {slot} by {error:.1%}" for slot, error in others.items())
        detail = f"the golden states differ from samples that begin with the same tokens: {slots}"
        yield _bad(SemanticKind.WRONG_MODEL, tuple(others), detail)


def _bad(kind: SemanticKind, slots: tuple[int, ...], detail: str) -> SemanticBad:
    return SemanticBad(sample=None, sample_id=None, kind=kind, slots=slots, detail=detail)

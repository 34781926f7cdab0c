"""Learn from a store what its states look like: identity maps and shared beginnings."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import CorruptStoreError, NotExtractedError
from hsstore.semantic.blas import one_blas_thread
from hsstore.semantic.context import FOLDS, Context, Fitted, Source, fold_of
from hsstore.semantic.contrast import SKIPPED_ROWS
from hsstore.semantic.floats import to_float32
from hsstore.semantic.identity import RIDGES, Regression, features, robust_scale
from hsstore.semantic.measure import pieces, row_rms
from hsstore.semantic.prefix import PREFIX_ROWS, find_references
from hsstore.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hsstore.semantic.identity import Codes, IdentityMap
    from hsstore.tasks import Where

ROWS = 50_000
"""That maps are fitted on, in both folds together."""
ROWS_A_SAMPLE = 256
LEAST_ROWS = 400
"""Fewer rows a fold fit no map."""
LEAST_COSINE = 0.05
"""By which a map must fit tokens that it has not seen, to be used at all."""
LEAST_SEEN = 3
"""Rows of a token that a map was fitted on, for it to tell that token: those of a language that a store has little of
fit nothing well, deep in a model."""
SCALE_ROWS = 4096
"""That median and spread of each channel are taken from, and a fit."""
SHIFTS = (-1, 0, 1)
"""Tokens that maps are fitted to: if not the own one is the easiest, the whole slot is shifted."""

OWN = SHIFTS.index(0)


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows taken from one sample.

    Attributes
    ----------
    sample : int
    features : float16 (n, slots, channels)
        Of the auxiliary slots.
    ids : int32 (n, 3)
        The tokens before, at and after each row.
    beginning : int32 (m,)
        First tokens.
    first_states : float32 (m, slots, hidden)
        Their states.
    """

    sample: int
    features: npt.NDArray[np.float16]
    ids: npt.NDArray[np.int32]
    beginning: npt.NDArray[np.int32]
    first_states: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned, and what stands against it.

    Attributes
    ----------
    fit : float64 (slots, 3)
        Of each auxiliary slot, how well maps to the tokens before, at and after a row fit rows that they
        have not seen: mean cosine. NaN where there are too few rows.
    """

    fitted: Fitted
    fit: npt.NDArray[np.float64]
    rows: int


def learn(source: Source, samples: Sequence[int], where: Where) -> Learned:
    """Fit maps and find shared beginnings on some samples; a part of them may be bad.

    Raises
    ------
    InputError
        The cluster cannot be used.
    """
    rows = min(ROWS_A_SAMPLE, max(16, ROWS // max(1, len(samples))))
    results = run_tasks(partial(take_rows, source, rows), samples, where, files=source.files)
    found = sorted((one for _, one in results if one), key=lambda one: one.sample)
    references = find_references(
        [one.beginning for one in found], [one.first_states for one in found]
    )
    with one_blas_thread():
        maps, fit, used = _fit_slots(Context(source), found)
    known = tuple(_known_tokens(found, fold) for fold in range(FOLDS))
    by_fold = tuple(tuple(of_slot[fold] for of_slot in maps) for fold in range(FOLDS))
    return Learned(Fitted(by_fold, known, tuple(references)), fit, used)


def _known_tokens(found: Sequence[Taken], fold: int) -> npt.NDArray[np.int32]:
    """Return the tokens that the maps of a fold were fitted on often enough."""
    ids = [one.ids[:, OWN] for one in found if fold_of(one.sample) == fold]
    tokens, counts = np.unique(np.concatenate([np.zeros(0, np.int32), *ids]), return_counts=True)
    return np.asarray(tokens[counts >= LEAST_SEEN], np.int32)


def take_rows(source: Source, count: int, sample: int) -> Taken | None:
    """Take some rows of one sample at random, and its beginning; None where it cannot be read."""
    with one_blas_thread(), suppress(CorruptStoreError, NotExtractedError, OSError):
        return _take_rows(Context(source), source.seed, count, sample)
    return None


def _take_rows(context: Context, seed: int, count: int, sample: int) -> Taken | None:
    ids = context.ids(sample)
    generator = np.random.default_rng([seed, sample])
    inside = np.arange(max(1, min(SKIPPED_ROWS, len(ids) - 2)), len(ids) - 1)
    if not len(inside):
        return None
    rows = np.sort(generator.choice(inside, min(count, len(inside)), replace=False))
    parts = []
    first = np.empty((0, context.model.slots, context.model.hidden), np.float32)
    for start, bits in pieces(context, sample, len(ids)):
        if start == 0:
            first = _finite(to_float32(bits[:PREFIX_ROWS], context.model.dtype))
        here = rows[(rows >= start) & (rows < start + len(bits))] - start
        values = _finite(to_float32(bits[here, : context.auxiliary], context.model.dtype))
        parts.append(_features(values))
    around = np.stack([ids[rows + shift] for shift in SHIFTS], axis=1)
    return Taken(sample, np.concatenate(parts), around, ids[: len(first)], first)


def _finite(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.nan_to_num(values, copy=False, nan=0, posinf=0, neginf=0)


def _features(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Return the features of all slots, (n, slots, channels)."""
    slots = [features(values[:, slot], row_rms(values[:, slot])) for slot in range(values.shape[1])]
    if not slots:
        return np.empty((len(values), 0, 0), np.float16)
    return np.clip(np.stack(slots, axis=1), -60_000, 60_000).astype(np.float16)


def _fit_slots(
    context: Context, found: Sequence[Taken]
) -> tuple[list[list[IdentityMap | None]], npt.NDArray[np.float64], int]:
    """Fit the maps of every auxiliary slot; return them by slot and fold, and how well they fit."""
    fit = np.full((context.auxiliary, len(SHIFTS)), np.nan)
    folds = [[one for one in found if fold_of(one.sample) == fold] for fold in range(FOLDS)]
    counts = [sum(len(one.ids) for one in fold) for fold in folds]
    maps: list[list[IdentityMap | None]] = [[None] * FOLDS for _ in range(context.auxiliary)]
    if min(counts) < LEAST_ROWS:
        return maps, fit, sum(counts)
    ids = [np.concatenate([one.ids for one in fold]) for fold in folds]
    for slot in range(context.auxiliary):
        rows = [
            np.concatenate([one.features[:, slot] for one in fold]).astype(np.float32)
            for fold in folds
        ]
        maps[slot], fit[slot] = _fit_slot(rows, ids, context.codes)
    return maps, fit, sum(counts)


def _fit_slot(
    rows: Sequence[npt.NDArray[np.float32]], ids: Sequence[npt.NDArray[np.int32]], codes: Codes
) -> tuple[list[IdentityMap | None], npt.NDArray[np.float64]]:
    """Fit the two maps of a slot, with that penalty under which each fits the other fold best."""
    centre, spread = robust_scale(rows[0][:: max(1, len(rows[0]) // SCALE_ROWS)])
    wanted = [[codes(of_fold[:, at]) for at in range(len(SHIFTS))] for of_fold in ids]
    folds = [Regression(rows[fold], wanted[fold], centre, spread) for fold in range(FOLDS)]
    fit = np.full(len(SHIFTS), -1.0)
    own_maps: list[IdentityMap | None] = [None] * FOLDS
    for ridge in RIDGES:
        maps = [fold.solve(ridge) for fold in folds]
        here = np.mean(
            [_mean_cosines(maps[f], rows[1 - f], wanted[1 - f]) for f in range(FOLDS)], 0
        )
        if here[OWN] > max(fit[OWN], LEAST_COSINE):
            own_maps = [of_fold[OWN] for of_fold in maps]
        fit = np.maximum(fit, here)
    return own_maps, fit


def _mean_cosines(
    maps: Sequence[IdentityMap],
    rows: npt.NDArray[np.float32],
    codes: Sequence[npt.NDArray[np.float32]],
) -> list[float]:
    """Return how well each map fits some rows that it has not seen."""
    few = slice(None, None, max(1, len(rows) // SCALE_ROWS))
    return [
        float(np.einsum("ij,ij->i", one.guess(rows[few]), wanted[few]).mean())
        for one, wanted in zip(maps, codes, strict=True)
    ]

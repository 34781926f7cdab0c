"""Limits of what a good sample measures: from the store's own population, held by absolute anchors. Pure.

Medians and median distances from them, so that a store of which a part is bad still shows what is good.
The constants come from SmolLM2-135M's states of 221 ShareGPT conversations, and were changed three times, after false
alarms in 1,079 others, in 1,012 and in 1,047 more. docs/semantic.md tells what they did on which conversations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsstore.semantic.prefix import noise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hsstore.semantic.contrast import Fit
    from hsstore.semantic.measure import Measures
    from hsstore.spec import Model

FACTOR = 0.02
"""rms(final / w) of a row differs from 1 by rounding alone: 0.004 in bfloat16."""
PATTERNS = 32.0
"""Different mantissas in a row, of 128; fp8 leaves 8, and a good row of 512 numbers has over 100."""
UNDONE = -0.05
"""Taking the final norm back makes the loss of good states larger; nats a token. Of a few rows that a model predicts badly
it may not: it makes wrong guesses less sure."""
LOG_RMS = 0.4
"""Least distance of a slot's median log rms from the store's that is odd: a factor of 1.5."""
SPREADS = 6.0
"""So many spreads from the median are still good."""
SHARE = 0.15
"""A contrast with the neighbours below this share of the store's median is bad. Bad ones are about 0 or less."""
WHOLE_SHARE = 0.25
"""The same of far tokens. Good ones were 0.12 at least, in Chinese, of which a store may have little, and bad ones of the
third set 0.16, in English in a store that has little of that: the own fit has to be bad as well."""
WINDOW_SHARE = 0.35
"""The same of the worst window and its standard error; its own fit has to be bad as well."""
LEVEL_SHARE = 0.6
"""A window, or a sample, of other text also fits its tokens badly as such: by so much of the usual contrast less than
usual. Text that nobody predicts (base64) or of few different tokens (Japanese, byte by byte) has no contrast, but fits."""
LOSS_LEVEL_SHARE = 0.45
"""The same of next tokens, whose fit varies less: planted pieces were 0.46 at least, good windows 0.37 at most."""
CLEAR_SPREADS = 2.0
"""Where the limit of a contrast is not so far from the median, the check says nothing, and is not made."""
LEAST_SAMPLES = 8
"""Fewer samples give no limit."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit, and where it comes from; `limit` is NaN where nothing can be checked."""

    samples: int
    typical: float
    limit: float
    why: str

    def is_under(self, value: float) -> bool:
        """Say whether a value is too small."""
        return bool(value < self.limit)  # False for NaN, on both sides

    def is_over(self, value: float) -> bool:
        """Say whether a value is too large."""
        return bool(value > self.limit)


@dataclass(frozen=True, slots=True)
class FitBounds:
    """Least values of what `Fit` holds."""

    shift: Bound
    whole: Bound
    window: Bound
    level: Bound
    """Least own fit of a window, or of a sample, whose contrast is too small."""


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits that come from the store."""

    log_rms: tuple[Bound, ...]
    """By slot; `limit` is a distance from `typical`."""
    beginning: tuple[Bound, ...]
    """By slot."""
    loss: FitBounds
    identity: tuple[FitBounds, ...]
    """By auxiliary slot."""
    undone: Bound
    """Absolute. Where `typical` is under it, most of the store was normed once more."""


def limits_of(population: Sequence[Measures], model: Model) -> Limits:
    """Return the limits that a population of samples gives."""
    anchors = noise(model)
    return Limits(
        log_rms=tuple(
            _distance([one.log_rms[slot] for one in population]) for slot in range(model.slots)
        ),
        beginning=tuple(
            _largest([one.beginning.error[slot, slot] for one in population if one.beginning], at)
            for slot, at in enumerate(anchors.tolist())
        ),
        loss=_fit_bounds([one.loss for one in population], LOSS_LEVEL_SHARE),
        identity=tuple(
            _fit_bounds([one.identity[slot] for one in population], LEVEL_SHARE)
            for slot in range(len(model.layers))
        ),
        undone=Bound(*_robust([one.undone for one in population])[:2], UNDONE, "absolute: nats"),
    )


def _fit_bounds(fits: Sequence[Fit | None], level_share: float) -> FitBounds:
    def bound(value: Callable[[Fit], float], share: float) -> Bound:
        return _least([value(fit) for fit in fits if fit is not None], share)

    whole = bound(lambda fit: fit.whole, WHOLE_SHARE)
    return FitBounds(
        shift=bound(lambda fit: fit.shift, SHARE),
        whole=whole,
        window=bound(lambda fit: fit.window, WINDOW_SHARE),
        level=_level(fits, whole, level_share),
    )


def _least(values: Sequence[float], share: float) -> Bound:
    count, median, spread = _robust(values)
    if count < LEAST_SAMPLES or not median > 0:
        return Bound(count, median, np.nan, "not checked: too few samples show what is usual")
    limit = share * median
    if median - CLEAR_SPREADS * spread < limit:
        return Bound(count, median, np.nan, "not checked: good samples differ too much")
    return Bound(count, median, limit, f"{share:.0%} of the median")


def _level(fits: Sequence[Fit | None], whole: Bound, share: float) -> Bound:
    count, own, _ = _robust([fit.own for fit in fits if fit is not None])
    return Bound(count, own, own - share * whole.typical, "far below the usual own fit")


def _distance(values: Sequence[float]) -> Bound:
    count, median, spread = _robust(values)
    if count < LEAST_SAMPLES:
        return Bound(count, median, np.nan, "not checked: too few samples show what is usual")
    return Bound(
        count, median, max(LOG_RMS, SPREADS * spread), "distance from the median, at least 0.4"
    )


def _largest(values: Sequence[float], anchor: float) -> Bound:
    count, median, spread = _robust(values)
    if count < LEAST_SAMPLES:
        return Bound(
            count, median, np.nan, "not checked: too few samples begin with the same tokens"
        )
    limit = max(anchor, median + SPREADS * spread)
    return Bound(count, median, limit, "twice the noise of other kernels, at least")


def _robust(values: Sequence[float]) -> tuple[int, float, float]:
    """Return the count, the median and the spread of the values that are there."""
    known = np.array([value for value in values if not np.isnan(value)])
    if not len(known):
        return 0, np.nan, np.nan
    median = float(np.median(known))
    return len(known), median, float(np.median(np.abs(known - median))) * 1.4826

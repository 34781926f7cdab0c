"""What a sample's measures say: one kind, that which explains most of what was seen.

The order matters: a state that is no number, or another slot's, says nothing of its tokens; rows that
are shifted also differ in a shared beginning, and are still rows of the right model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsstore.report import SemanticKind as Kind
from hsstore.semantic.align import Place, find_place
from hsstore.semantic.contrast import WINDOW_ROWS, Fit
from hsstore.semantic.limits import FACTOR, PATTERNS
from hsstore.semantic.measure import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hsstore.semantic.context import Context
    from hsstore.semantic.limits import FitBounds, Limits
    from hsstore.semantic.measure import Measures
    from hsstore.spec import Model


NEAR_ROWS = 2
NEAR_SHARE, FAR_SHARE = 0.2, 0.5
"""Of the usual contrast, that rows must have where they seem to belong: of many distances, with fewer rows behind
them the farther they are, one may be good by chance."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is wrong with a sample."""

    sample: int
    kind: Kind
    slots: tuple[int, ...]
    detail: str


def judge(context: Context, limits: Limits, found: Measures) -> Judgement | None:
    """Judge one sample; None where nothing is wrong. Reads its states again where something is."""
    judging = _Judging(context, limits, found)
    for rule in RULES:
        if (judgement := rule(judging)) is not None:
            return judgement
    return None


@dataclass(slots=True)
class _Judging:
    context: Context
    limits: Limits
    found: Measures

    @property
    def model(self) -> Model:
        return self.context.model

    def say(self, kind: Kind, slots: Iterable[int], detail: str) -> Judgement:
        return Judgement(self.found.sample, kind, tuple(sorted(slots)), detail)

    def bounds(self, slot: int) -> FitBounds:
        """Return the limits of how a slot fits its tokens."""
        auxiliary = slot < self.context.auxiliary
        return self.limits.identity[slot] if auxiliary else self.limits.loss

    def fit(self, slot: int) -> Fit | None:
        """Return how a slot fits its tokens."""
        auxiliary = slot < self.context.auxiliary
        return self.found.identity[slot] if auxiliary else self.found.loss

    def is_off(self, slot: int) -> bool:
        """Say whether a slot as a whole does not fit its tokens."""
        fit, bounds = self.fit(slot), self.bounds(slot)
        return fit is not None and (
            bounds.shift.is_under(fit.shift)
            or (bounds.whole.is_under(fit.whole) and bounds.level.is_under(fit.own))
        )

    def has_piece(self, slot: int) -> bool:
        """Say whether the worst window of a slot does not fit its tokens."""
        fit = self.fit(slot)
        bounds = self.bounds(slot)
        return (
            fit is not None
            and bounds.window.is_under(fit.window)
            and bounds.level.is_under(fit.window_own)
        )

    def fits(self, slot: int) -> bool:
        """Say whether a slot is known to fit its tokens."""
        fit, bounds = self.fit(slot), self.bounds(slot)
        return fit is not None and fit.whole > bounds.whole.limit

    @property
    def factor_is_off(self) -> bool:
        low, _, high = self.found.factor
        return bool(low < 1 - FACTOR or high > 1 + FACTOR)

    def knows_rows(self, slot: int) -> bool:
        """Say whether the first rows of a slot can be compared with those of other samples."""
        limit = self.limits.beginning[slot].limit
        return self.found.beginning is not None and not np.isnan(limit)

    def other_rows(self) -> list[int]:
        """Return the slots whose first rows are not those of other samples."""
        beginning = self.found.beginning
        if beginning is None:
            return []
        bounds = self.limits.beginning
        return [s for s in range(self.model.slots) if bounds[s].is_over(beginning.error[s, s])]

    def other_sizes(self) -> list[int]:
        """Return the slots whose rows are of another size than in other samples."""
        return [
            slot
            for slot, bound in enumerate(self.limits.log_rms)
            if bound.is_over(abs(self.found.log_rms[slot] - bound.typical))
        ]


# --- values -----------------------------------------------------------------------------------


def _not_finite(judging: _Judging) -> Judgement | None:
    slots = _where(judging.found.not_finite)
    rows = max(judging.found.not_finite)
    detail = f"infinities or NaNs in {_rows(rows)}, first in row {judging.found.bad_row}"
    return judging.say(Kind.NOT_FINITE, slots, detail) if slots else None


def _zero_rows(judging: _Judging) -> Judgement | None:
    found = judging.found
    slots = _where(found.zero)
    share = max(found.zero) / found.tokens
    detail = f"{_rows(max(found.zero))} ({share:.0%}) all zero, first row {found.bad_row}"
    return judging.say(Kind.ZERO_ROWS, slots, detail) if slots else None


def _equal_slots(judging: _Judging) -> Judgement | None:
    equal = judging.found.equal
    if not equal:
        return None
    slots = {slot for pair in equal for slot in pair}
    pairs = ", ".join(f"slots {a} and {b} in {_rows(rows)}" for (a, b), rows in equal.items())
    return judging.say(Kind.EQUAL_SLOTS, slots, f"equal: {pairs}")


def _rounded(judging: _Judging) -> Judgement | None:
    few = {s: count for s, count in enumerate(judging.found.patterns) if count < PATTERNS}
    if not few:
        return None
    detail = (
        f"{min(few.values()):.0f} different mantissas in a row, where all 128 of bfloat16 occur"
    )
    return judging.say(Kind.ROUNDED, few, detail)


# --- slots ------------------------------------------------------------------------------------


def _permuted(judging: _Judging) -> Judgement | None:
    beginning = judging.found.beginning
    order = (
        _order_by_rows(judging)
        if beginning is not None and judging.other_rows()
        else _order_by_size(judging)
    )
    if not order:
        return None
    pairs = ", ".join(f"slot {slot} holds slot {other}" for slot, other in order.items())
    return judging.say(Kind.SLOTS_PERMUTED, order, pairs)


def _order_by_rows(judging: _Judging) -> dict[int, int]:
    """Return which slot's rows a slot holds, where that is another's."""
    beginning = judging.found.beginning
    if beginning is None:
        return {}
    bounds = judging.limits.beginning
    order = {}
    for slot in judging.other_rows():
        other = int(beginning.error[slot].argmin())
        if other != slot and beginning.error[slot, other] <= bounds[other].limit:
            order[slot] = other
    return order


def _order_by_size(judging: _Judging) -> dict[int, int]:
    """Return the same going by the sizes of rows, where those of some slots are each other's."""
    odd = judging.other_sizes()
    bounds = judging.limits.log_rms
    sizes = judging.found.log_rms
    order = {}
    for slot in odd:
        away = [abs(sizes[slot] - bounds[other].typical) for other in odd]
        other = odd[int(np.argmin(away))]
        if min(away) < bounds[other].limit / 2:
            order[slot] = other
    return order if len(odd) > 1 and sorted(order.values()) == odd else {}


def _scaled(judging: _Judging) -> Judgement | None:
    factors: dict[int, float] = {}
    low, middle, high = judging.found.factor
    if judging.factor_is_off and middle > 0 and high - low < 2 * FACTOR * middle:
        factors[judging.context.auxiliary] = middle
    beginning = judging.found.beginning
    for slot in judging.other_rows() if beginning is not None else ():
        if beginning is not None and beginning.rest[slot] < judging.limits.beginning[slot].limit:
            factors[slot] = float(beginning.scale[slot])
    if beginning is None:
        for slot in judging.other_sizes():
            if slot < judging.context.auxiliary and judging.fits(slot):
                away = judging.found.log_rms[slot] - judging.limits.log_rms[slot].typical
                factors.setdefault(slot, float(np.exp(away)))
    if not factors:
        return None
    detail = ", ".join(f"slot {s} by about {f:.3g}" for s, f in sorted(factors.items()))
    return judging.say(Kind.SCALED, factors, f"multiplied: {detail}")


# --- the final norm ---------------------------------------------------------------------------


def _not_normed(judging: _Judging) -> Judgement | None:
    if not judging.factor_is_off:
        return None
    normed = measure(judging.context, judging.found.sample, normed=False).loss
    bounds = judging.limits.loss
    if normed is None or not (
        normed.whole > bounds.whole.limit and normed.shift > bounds.shift.limit
    ):
        return None
    low, _, high = judging.found.factor
    detail = f"rms(final / w) is {low:.3g} to {high:.3g} and not 1; once normed, the rows fit their tokens"
    return judging.say(Kind.NOT_NORMED, [judging.context.auxiliary], detail)


def _normed_again(judging: _Judging) -> Judgement | None:
    if not judging.context.has_final:
        return None
    final = judging.context.auxiliary
    found, limits = judging.found, judging.limits
    # What many samples begin with tells nothing where most were normed once more.
    once = not limits.undone.is_under(limits.undone.typical)
    if once and judging.knows_rows(final):
        again = (
            final in judging.other_rows() and found.beginning_undone < limits.beginning[final].limit
        )
        detail = (
            "taken back once, the first rows are those of samples that begin with the same tokens"
        )
    else:
        again = (
            limits.undone.is_under(found.undone)
            and not judging.is_off(final)
            and not judging.has_piece(final)
        )
        detail = f"taking the final norm back once lowers the loss by {-found.undone:.2f}"
    return judging.say(Kind.NORMED_AGAIN, [final], detail) if again else None


def _noise(judging: _Judging) -> Judgement | None:
    final = judging.context.auxiliary
    if not judging.factor_is_off or judging.fits(final):
        return None
    low, _, high = judging.found.factor
    slots = [slot for slot in range(judging.model.slots) if judging.is_off(slot)]
    detail = f"rms(final / w) is {low:.3g} to {high:.3g} and not 1, and no row fits its token"
    return judging.say(Kind.NOISE, {*slots, final}, detail)


# --- tokens -----------------------------------------------------------------------------------


def _shifted(judging: _Judging) -> Judgement | None:
    places = {}
    for slot in _off_slots(judging):
        place = find_place(judging.context, judging.found.sample, slot)
        if place is not None and _is_elsewhere(place, judging.bounds(slot).whole.typical):
            places[slot] = place.away
    if not places:
        return None
    detail = ", ".join(f"slot {slot} holds row t {away:+d}" for slot, away in places.items())
    return judging.say(Kind.ROWS_SHIFTED, places, detail)


def _is_elsewhere(place: Place, usual: float) -> bool:
    share = NEAR_SHARE if abs(place.away) <= NEAR_ROWS else FAR_SHARE
    return place.away != 0 and place.best > share * usual and place.here < place.best / 2


def _wrong_tokens(judging: _Judging) -> Judgement | None:
    slots = _off_slots(judging)
    if not slots:
        return None
    detail = "the rows fit their tokens no better than others, at any distance"
    return judging.say(Kind.WRONG_TOKENS, slots, detail)


def _off_slots(judging: _Judging) -> list[int]:
    return [slot for slot in range(judging.model.slots) if judging.is_off(slot)]


def _foreign_piece(judging: _Judging) -> Judgement | None:
    slots = {}
    for slot in range(judging.model.slots):
        fit = judging.fit(slot)
        if fit is not None and judging.has_piece(slot):
            slots[slot] = fit.window_row
    if not slots:
        return None
    detail = ", ".join(
        f"slot {slot}: rows {row} to {row + WINDOW_ROWS - 1}" for slot, row in slots.items()
    )
    return judging.say(
        Kind.FOREIGN_PIECE, slots, f"the rows around these do not fit their tokens: {detail}"
    )


# --- the model --------------------------------------------------------------------------------


def _wrong_model(judging: _Judging) -> Judgement | None:
    slots = judging.other_rows()
    beginning = judging.found.beginning
    if not slots or beginning is None:
        return None
    away = ", ".join(f"slot {slot} by {beginning.error[slot, slot]:.1%}" for slot in slots)
    detail = f"the first rows differ from those of samples that begin with the same tokens: {away}"
    return judging.say(Kind.WRONG_MODEL, slots, detail)


def _odd_size(judging: _Judging) -> Judgement | None:
    slots = judging.other_sizes()
    if not slots:
        return None
    away = {s: judging.found.log_rms[s] - judging.limits.log_rms[s].typical for s in slots}
    detail = ", ".join(f"slot {s} by about {np.exp(a):.3g}" for s, a in away.items())
    return judging.say(Kind.SCALED, slots, f"the rows are of another size: {detail}")


def _odd_factor(judging: _Judging) -> Judgement | None:
    if not judging.factor_is_off:
        return None
    low, _, high = judging.found.factor
    detail = f"rms(final / w) is {low:.3g} to {high:.3g} and not 1: not all rows come from the final norm"
    return judging.say(Kind.NOISE, [judging.context.auxiliary], detail)


RULES: tuple[Callable[[_Judging], Judgement | None], ...] = (
    _not_finite,
    _zero_rows,
    _equal_slots,
    _rounded,
    _permuted,
    _scaled,
    _not_normed,
    _normed_again,
    _noise,
    _shifted,
    _wrong_tokens,
    _wrong_model,
    _foreign_piece,
    _odd_size,
    _odd_factor,
)


def _where(counts: list[int]) -> list[int]:
    return [slot for slot, count in enumerate(counts) if count]


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"

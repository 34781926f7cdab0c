"""Make the report: what was checked, with which limits, what it can and cannot see, what was found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hsstore.report import SemanticBad, SemanticCheck, SemanticReport
from hsstore.semantic.golden import golden_states, other_samples
from hsstore.semantic.limits import FACTOR, PATTERNS, Bound
from hsstore.semantic.whole import of_the_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hsstore.report import SemanticKind
    from hsstore.semantic.context import Context, Source
    from hsstore.semantic.fit import Learned
    from hsstore.semantic.judge import Judgement
    from hsstore.semantic.limits import Limits

SEES = {
    "values": (
        "infinities, NaNs, rows of zeros, equal slots, values rounded to fewer bits",
        "the rest",
    ),
    "final norm": (
        "final states before the norm, scaled, noisy or rounded, in any row",
        "the norm applied twice: the next check sees it",
    ),
    "norm twice": (
        "the final norm applied once more than recorded, in most samples or where no beginning tells",
        "other faults",
    ),
    "row size": (
        "slots scaled by 1.5 or more, slots in each other's place",
        "smaller factors, where no samples begin alike",
    ),
    "next token": (
        "final states shifted, swapped, or of other text",
        "auxiliary slots; states of a model that predicts much the same",
    ),
    "next token, 64 rows": (
        "a piece of other text in the final state",
        "a few rows at a time, and hardly a piece within a loop of few tokens",
    ),
    "own token": (
        "an auxiliary slot shifted, swapped, or of other text",
        "another layer of the same text",
    ),
    "own token, 64 rows": (
        "a piece of other text in an auxiliary slot",
        "a few rows at a time, and hardly a piece within a loop of few tokens",
    ),
    "shared beginning": (
        "another layer, checkpoint, quantisation or context; factors such as 0.9",
        "what other kernels' noise hides; faults behind the beginning, or of all samples",
    ),
    "golden states": (
        "a fault of all samples, and runs whose server computed otherwise",
        "a fault that the server had as well when it was asked for one request alone",
    ),
}
"""What each check sees, and what it cannot."""


@dataclass(slots=True)
class Found:
    """What was found in all samples: counted, and the first ones listed."""

    by_kind: Counter[SemanticKind]
    judgements: list[Judgement]
    samples: int
    tokens: int
    unreadable: int

    def add(self, judgements: Iterable[Judgement], listed: int) -> None:
        """Count findings, and keep the first."""
        for judgement in judgements:
            self.by_kind[judgement.kind] += 1
            if len(self.judgements) < listed:
                self.judgements.append(judgement)


def make_report(
    source: Source,
    context: Context,
    learned: Learned,
    limits: Limits,
    population: int,
    found: Found,
) -> SemanticReport:
    """Make the report of a whole store."""
    whole = list(of_the_store(context, learned, limits))
    samples = sorted(found.judgements, key=lambda one: one.sample)
    by_kind = found.by_kind + Counter(bad.kind for bad in whole)
    return SemanticReport(
        ok=not by_kind,
        model_dir=str(source.model_dir),
        norm=context.norm_words,
        seed=source.seed,
        samples=found.samples,
        unreadable=found.unreadable,
        tokens=found.tokens,
        rows_fitted=learned.rows,
        checks=tuple(_checks(context, learned, limits, population)),
        by_kind=dict(by_kind.most_common()),
        bad=(
            *whole,
            *(
                SemanticBad(
                    sample=one.sample,
                    sample_id=context.store.sample_id(one.sample),
                    kind=one.kind,
                    slots=one.slots,
                    detail=one.detail,
                )
                for one in samples
            ),
        ),
    )


# --- the checks -------------------------------------------------------------------------------


def _checks(
    context: Context, learned: Learned, limits: Limits, population: int
) -> Iterator[SemanticCheck]:
    final = context.auxiliary
    patterns = Bound(population, np.nan, PATTERNS, "absolute: different mantissas in a row, of 128")
    yield _check("values", None, patterns)
    yield from _norm_checks(context, limits, population)
    for slot, bound in enumerate(limits.log_rms):
        yield _check("row size", slot, bound)
    if context.has_final:
        yield _check("next token", final, limits.loss.whole)
        yield _check("next token, 64 rows", final, limits.loss.window)
    for slot, bounds in enumerate(limits.identity):
        yield _check("own token", slot, _unless_unfit(bounds.whole, learned.fit[slot]))
        yield _check("own token, 64 rows", slot, _unless_unfit(bounds.window, learned.fit[slot]))
    for slot, bound in enumerate(limits.beginning):
        yield _check("shared beginning", slot, bound)
    yield _check("golden states", None, _golden_bound(context, learned))


def _norm_checks(context: Context, limits: Limits, population: int) -> Iterator[SemanticCheck]:
    final = context.auxiliary
    if context.model.final == "post-norm":
        yield _check(
            "final norm", final, Bound(population, 1.0, FACTOR, "absolute: distance from 1")
        )
    else:
        why = f"not checked: the final state is recorded as {context.model.final!r}"
        yield _check("final norm", None, Bound(0, np.nan, np.nan, why))
    if context.has_final:
        yield _check("norm twice", final, limits.undone)


def _unless_unfit(bound: Bound, fit: np.ndarray) -> Bound:
    if np.isnan(fit).any():
        return Bound(0, np.nan, np.nan, "not checked: too few rows to fit a map on")
    if not bound.samples:
        why = f"not checked: the rows of this slot do not tell their tokens (mean cosine {fit[1]:.2f})"
        return Bound(0, np.nan, np.nan, why)
    return bound


def _golden_bound(context: Context, learned: Learned) -> Bound:
    if golden_states(context.store) is None:
        return Bound(0, np.nan, np.nan, "not checked: the store was made without a server")
    if other_samples(context.store, learned.fitted.references) is None:
        why = "only between runs: too few samples begin with the tokens of the golden states"
        return Bound(0, np.nan, 0.05, why)
    return Bound(1, np.nan, 0.05, "absolute: what rounding cannot explain")


def _check(name: str, slot: int | None, bound: Bound) -> SemanticCheck:
    sees, blind = SEES[name]
    return SemanticCheck(
        name=name,
        slot=slot,
        checked=bool(np.isfinite(bound.limit)),
        samples=bound.samples,
        typical=_known(bound.typical),
        limit=_known(bound.limit),
        why=bound.why,
        sees=sees,
        blind=blind,
    )


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None

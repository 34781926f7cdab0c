"""Planted faults are named; the samples beside them are not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from hsstore.report import SemanticKind as Kind
from hsstore.semantic import check_semantics
from hsstore.semantic.check import prepare
from hsstore.semantic.context import Context
from hsstore.semantic.judge import judge
from hsstore.semantic.measure import measure
from hsstore.tasks import Where
from tests.semantic.synthetic import Formula, bits_of, floats_of, make_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.report import SemanticBad, SemanticReport
    from hsstore.spec import Model

    Bits = npt.NDArray[np.uint16]

WHERE = Where(workers=1)


def checked(
    directory: Path,
    checkpoint: Path,
    texts: list[list[int]],
    states: list[Bits],
    model: Model | None = None,
) -> SemanticReport:
    """Check a store of these states."""
    store = make_store(directory / "store.zarr", texts, states, model=model)
    return check_semantics(store.path, checkpoint, WHERE)


def _rolled(bits: Bits, away: int, slots: slice | int = slice(None)) -> Bits:
    states = bits.copy()
    states[:, slots] = np.roll(bits[:, slots], away, axis=0)
    return states


def _with(bits: Bits, rows: slice, slots: slice | int, other: Bits) -> Bits:
    states = bits.copy()
    states[rows, slots] = other[rows, slots]
    return states


def _scaled(bits: Bits, factor: float, slots: slice) -> Bits:
    states = bits.copy()
    states[:, slots] = bits_of(floats_of(np.ascontiguousarray(bits[:, slots])) * factor)
    return states


def _normed_again(bits: Bits) -> Bits:
    states = bits.copy()
    states[:, 2] = bits_of(Formula().norm(floats_of(np.ascontiguousarray(bits[:, 2]))))
    return states


def _noise(bits: Bits) -> Bits:
    values = floats_of(bits)
    drawn = np.random.default_rng(5).normal(size=values.shape)
    return bits_of(values.mean(axis=0) + values.std(axis=0) * drawn)


def _infinite(bits: Bits) -> Bits:
    states = bits.copy()
    states[30, 1, 5], states[40, 2, 6] = 0x7F80, 0x7FC0
    return states


def _holes(bits: Bits) -> Bits:
    states = bits.copy()
    states[np.random.default_rng(3).random(len(bits)) < 0.7] = 0
    return states


def _moved_up(bits: Bits, other: Bits) -> Bits:
    return np.concatenate([bits[60:], other[len(bits) - 60 : len(bits)]])


def _fp8(bits: Bits) -> Bits:
    return bits_of(floats_of(bits).astype(ml_dtypes.float8_e4m3fn).astype(np.float32))


ALL, AUX, FINAL = slice(0, 3), slice(0, 2), slice(2, 3)
VALUES: dict[int, tuple[Kind, Callable[[Bits, Bits], Bits]]] = {
    1: (Kind.NOT_FINITE, lambda own, other: _infinite(own)),
    3: (Kind.ZERO_ROWS, lambda own, other: _holes(own)),
    5: (Kind.EQUAL_SLOTS, lambda own, other: own[:, [0, 0, 2]].copy()),
    7: (Kind.ROUNDED, lambda own, other: _fp8(own)),
    9: (Kind.SLOTS_PERMUTED, lambda own, other: own[:, [1, 0, 2]].copy()),
    11: (Kind.SLOTS_PERMUTED, lambda own, other: own[:, [0, 2, 1]].copy()),
    13: (Kind.SCALED, lambda own, other: _scaled(own, 0.5, ALL)),
    15: (Kind.SCALED, lambda own, other: _scaled(own, 0.9, AUX)),
    17: (Kind.NORMED_AGAIN, lambda own, other: _normed_again(own)),
    19: (Kind.NOISE, lambda own, other: _noise(own)),
}
TOKENS: dict[int, tuple[Kind, Callable[[Bits, Bits], Bits]]] = {
    1: (Kind.ROWS_SHIFTED, lambda own, other: _rolled(own, -1)),
    3: (Kind.ROWS_SHIFTED, lambda own, other: _rolled(own, 1, AUX)),
    5: (Kind.ROWS_SHIFTED, lambda own, other: _rolled(own, -1, 1)),
    7: (Kind.ROWS_SHIFTED, lambda own, other: _rolled(own, 1, FINAL)),
    9: (Kind.ROWS_SHIFTED, _moved_up),
    11: (Kind.WRONG_TOKENS, lambda own, other: other),
    13: (Kind.WRONG_TOKENS, lambda own, other: _with(own, slice(None), 1, other)),
    15: (Kind.FOREIGN_PIECE, lambda own, other: _with(own, slice(50, 114), 0, other)),
    17: (Kind.FOREIGN_PIECE, lambda own, other: _with(own, slice(50, 114), 2, other)),
}


def _planted(
    path: Path,
    texts: list[list[int]],
    faults: dict[int, tuple[Kind, Callable[[Bits, Bits], Bits]]],
) -> Path:
    right = [Formula().capture(ids) for ids in texts]
    states = [
        faults[at][1](bits, right[at + 20]) if at in faults else bits
        for at, bits in enumerate(right)
    ]
    return make_store(path, texts, states).path


@pytest.mark.parametrize("faults", [VALUES, TOKENS], ids=["values", "tokens"])
def test_every_planted_fault_is_named_and_nothing_else(
    directory: Path,
    checkpoint: Path,
    texts: list[list[int]],
    faults: dict[int, tuple[Kind, Callable[[Bits, Bits], Bits]]],
) -> None:
    store = _planted(directory / "store.zarr", texts, faults)

    report = check_semantics(store, checkpoint, WHERE)

    found = {bad.sample: bad.kind for bad in report.bad}
    assert found == {sample: kind for sample, (kind, _) in faults.items()}
    assert not report.ok
    assert sum(report.by_kind.values()) == len(faults)


def test_the_slots_and_the_distance_of_a_shift_are_told(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    store = _planted(directory / "store.zarr", texts, TOKENS)

    report = check_semantics(store, checkpoint, WHERE)

    bad = {one.sample: one for one in report.bad}
    assert bad[3].slots == (0, 1)
    assert "slot 0 holds row t -1" in bad[3].detail
    assert "holds row t +60" in bad[9].detail
    assert bad[13].slots == (1,)
    assert bad[15].slots == (0,)


def test_a_sample_of_another_checkpoint_is_told_from_one_of_other_text(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [Formula().capture(ids) for ids in texts]
    right = Formula().states(texts[4])
    away = np.random.default_rng(1).normal(size=right.shape) * right.std(axis=2, keepdims=True)
    other = right + 0.1 * away
    other[:, 2] = Formula().norm(other[:, 2])
    states[4] = bits_of(other)

    report = checked(directory, checkpoint, texts, states)

    assert [(bad.sample, bad.kind) for bad in report.bad] == [(4, Kind.WRONG_MODEL)]


def test_a_final_state_before_the_norm_is_named(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [Formula().capture(ids) for ids in texts]
    states[6][:, 2] = bits_of(Formula().states(texts[6])[:, 2])

    report = checked(directory, checkpoint, texts, states)

    assert [(bad.sample, bad.kind) for bad in report.bad] == [(6, Kind.NOT_NORMED)]


def test_in_a_store_of_states_before_the_norm_one_behind_it_is_named(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [bits_of(Formula().states(ids)) for ids in texts]
    states[8][:, 2] = Formula().capture(texts[8])[:, 2]
    model = Formula().describe(final="pre-norm")

    report = checked(directory, checkpoint, texts, states, model=model)

    assert [(bad.sample, bad.kind) for bad in report.bad] == [(8, Kind.NORMED_AGAIN)]
    unchecked = {check.name: check.why for check in report.checks if not check.checked}
    assert "recorded as 'pre-norm'" in unchecked["final norm"]


def test_a_shift_of_the_whole_store_is_seen(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [_rolled(Formula().capture(ids), -1, AUX) for ids in texts]

    report = checked(directory, checkpoint, texts, states)

    whole: list[SemanticBad] = [bad for bad in report.bad if bad.sample is None]
    assert [(bad.kind, bad.slots) for bad in whole] == [
        (Kind.ROWS_SHIFTED, (0,)),
        (Kind.ROWS_SHIFTED, (1,)),
    ]
    assert "slot 0 tells the token at t +1 best" in whole[0].detail


def test_without_a_final_state_the_auxiliary_ones_are_checked(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    states = [np.ascontiguousarray(Formula().capture(ids)[:, AUX]) for ids in texts]
    states[2] = _rolled(states[2], 1)
    model = Formula().describe(final="none")

    report = checked(directory, checkpoint, texts, states, model=model)

    assert [(bad.sample, bad.kind) for bad in report.bad] == [(2, Kind.ROWS_SHIFTED)]
    unchecked = {check.name: check.why for check in report.checks if not check.checked}
    assert "recorded as 'none'" in unchecked["final norm"]


def test_without_a_shared_beginning_that_is_said(
    directory: Path, checkpoint: Path, texts: list[list[int]]
) -> None:
    own = [ids[40:] for ids in texts]
    states = [Formula().capture(ids) for ids in own]
    states[3] = _rolled(states[3], 1)

    report = checked(directory, checkpoint, own, states)

    assert [(bad.sample, bad.kind) for bad in report.bad] == [(3, Kind.ROWS_SHIFTED)]
    unchecked = {check.name: check.why for check in report.checks if not check.checked}
    assert "too few samples begin with the same tokens" in unchecked["shared beginning"]


def test_a_loss_is_asked_about_the_norm_where_no_beginning_tells_or_most_of_the_store_is_wrong(
    healthy: Path, checkpoint: Path
) -> None:
    prepared = prepare(healthy, checkpoint, WHERE, seed=0)
    context, limits = Context(prepared.source), prepared.limits
    found = replace(measure(context, 5), undone=-1.0)
    alone = replace(found, beginning=None)
    wrong = replace(limits, undone=replace(limits.undone, typical=-1.0))

    judgements = [judge(context, limits, found), judge(context, limits, alone)]
    judgements.append(judge(context, wrong, found))

    kinds = [judgement and judgement.kind for judgement in judgements]
    assert kinds == [None, Kind.NORMED_AGAIN, Kind.NORMED_AGAIN]


def test_a_contrast_of_a_fifth_is_that_of_other_tokens_where_the_own_fit_is_bad_too(
    healthy: Path, checkpoint: Path
) -> None:
    prepared = prepare(healthy, checkpoint, WHERE, seed=0)
    context, bounds = Context(prepared.source), prepared.limits.identity[1]
    found = measure(context, 5)
    fit = found.identity[1]
    assert fit is not None
    found.identity[1] = replace(
        fit,
        whole=bounds.whole.typical / 5,
        own=bounds.level.limit - 0.01,
        window=0.0,
        window_own=0.0,
    )

    judgement = judge(context, prepared.limits, found)

    assert judgement is not None
    assert judgement.kind == Kind.WRONG_TOKENS

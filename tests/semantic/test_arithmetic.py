"""Norm, loss, contrast and fingerprint against the same written out in loops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hsstore.semantic.contrast import FAR, Contrast, contrast_rows, only, sum_up
from hsstore.semantic.floats import to_float32
from hsstore.semantic.head import read_head
from hsstore.semantic.loss import SampledLoss
from hsstore.semantic.norm import FinalNorm
from hsstore.semantic.prefix import compare, find_references, reference_of
from tests.semantic.synthetic import Formula, bits_of

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(1, 5), st.integers(2, 40))
@settings(deadline=None, max_examples=50)
def test_the_norm_is_x_over_its_rms_times_the_weight(seed: int, rows: int, hidden: int) -> None:
    generator = np.random.default_rng(seed)
    states = generator.normal(size=(rows, hidden)).astype(np.float32) * 10
    weight = generator.uniform(0.3, 3, hidden).astype(np.float32)
    norm = FinalNorm.of(weight, 1e-5)

    once = norm.apply(states)

    for row in range(rows):
        rms = math.sqrt(sum(float(x) ** 2 for x in states[row]) / hidden + 1e-5)
        expected = [float(x) / rms * float(w) for x, w in zip(states[row], weight, strict=True)]
        np.testing.assert_allclose(once[row], expected, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(norm.factors(once), 1, rtol=1e-3)
    np.testing.assert_allclose(norm.undo(norm.apply(once)), once, rtol=2e-3, atol=1e-4)


@given(SEEDS, st.integers(3, 90))
@settings(deadline=None, max_examples=50)
def test_contrasts_are_those_of_every_row_alone(seed: int, tokens: int) -> None:
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, 10, tokens, dtype=np.int32)
    table = generator.normal(size=(tokens, tokens)).astype(np.float32)
    rows = np.arange(tokens - 1)

    found = contrast_rows(rows, ids, 1, lambda which, at: table[rows[which], at])

    for row in range(tokens - 1):
        own = row + 1
        np.testing.assert_array_equal(found.own[row], table[row, own])
        np.testing.assert_array_equal(found.before[row], _gap(table, ids, row, own, -1))
        np.testing.assert_array_equal(found.after[row], _gap(table, ids, row, own, 1))
        near = {int(ids[at]) for at in (own - 1, own + 1) if at < tokens}
        far = [
            _gap(table, ids, row, own, away)
            for away in FAR
            if 0 <= own + away < tokens and not near & {int(ids[own + away]), int(ids[own])}
        ]
        known = [gap for gap in far if not math.isnan(gap)]
        expected = sum(known) / len(known) if known else math.nan
        np.testing.assert_allclose(found.far[row], expected, rtol=1e-4, atol=1e-5)
        assert found.repeated[row] == _stood_there(ids, own)


def _stood_there(ids: npt.NDArray[np.int32], own: int) -> bool:
    """Say whether a token stood beside one of its neighbours in the 64 before."""
    pairs = list(zip(ids.tolist(), ids[1:].tolist(), strict=False))
    return any(
        pairs[at] in pairs[max(0, at - 64) : at] for at in (own - 1, own) if 0 <= at < len(pairs)
    )


def _gap(
    table: npt.NDArray[np.float32], ids: npt.NDArray[np.int32], row: int, own: int, away: int
) -> float:
    at = own + away
    if not 0 <= at < len(ids) or ids[at] == ids[own]:
        return math.nan
    return float(table[row, own] - table[row, at])


@given(SEEDS, st.integers(1, 200))
@settings(deadline=None, max_examples=50)
def test_the_worst_window_is_the_least_of_all_that_are_known_by_a_third(
    seed: int, count: int
) -> None:
    generator = np.random.default_rng(seed)
    far = generator.normal(size=count).astype(np.float32)
    far[generator.random(count) < 0.4] = np.nan
    rows = np.arange(count) + 4
    repeated = generator.random(count) < 0.5

    fit = sum_up(Contrast(rows, far, far, far, far, repeated), 1)

    size = min(64, count)
    windows = {
        at + 4: [float(x) for x in far[at : at + size] if not math.isnan(x)]
        for at in range(count - size + 1)
    }
    new = {
        at + 4: int(np.count_nonzero(~np.isnan(far[at : at + size]) & ~repeated[at : at + size]))
        for at in range(count - size + 1)
    }
    means = {at: sum(some) / len(some) for at, some in windows.items() if 3 * len(some) >= size}
    if not means:
        assert math.isnan(fit.window)
    else:
        clear = {at: mean + _standard_error(windows[at], new[at]) for at, mean in means.items()}
        np.testing.assert_allclose(fit.whole, np.median(list(means.values())), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(fit.window, min(clear.values()), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(clear[fit.window_row], fit.window, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(fit.window_own, means[fit.window_row], rtol=1e-5, atol=1e-6)


def _standard_error(values: list[float], new: int) -> float:
    """Of which only so many count: the others repeat them."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((x - mean) ** 2 for x in values) / len(values) / max(new, 1))


def test_of_a_token_that_cannot_be_told_no_row_counts() -> None:
    fits = np.array([0.8, 0.1, 0.6], np.float32)

    left = only(
        Contrast(np.arange(3), fits, fits, fits, fits, np.zeros(3, np.bool_)),
        np.array([True, False, True]),
    )

    assert math.isclose(sum_up(left, 1).own, 0.7, rel_tol=1e-6)
    assert math.isclose(sum_up(left, 1).shift, 0.7, rel_tol=1e-6)
    assert math.isclose(sum_up(left, 1).whole, 0.7, rel_tol=1e-6)


@given(SEEDS)
@settings(deadline=None, max_examples=20)
def test_the_sampled_loss_is_that_of_a_softmax_over_the_token_and_the_negatives(
    checkpoint: Path, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    formula = Formula()
    output = read_head(checkpoint, formula.describe(), formula.norm_weight).output
    matrix = formula.embedding
    negatives = generator.choice(512, 7, replace=False)
    ids = generator.integers(0, 512, 30, dtype=np.int32)
    final = generator.normal(size=(29, 64)).astype(np.float32)
    loss = SampledLoss(output, output.rows(negatives))

    found = loss.contrast(final, np.arange(29), ids)
    alone = loss.loss(final, np.arange(29), ids)

    for row in range(29):
        logits = [float(final[row] @ matrix[token]) for token in (ids[row + 1], *negatives)]
        expected = math.log(sum(math.exp(x - logits[0]) for x in logits))
        np.testing.assert_allclose(-found.own[row], expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(alone[row], expected, rtol=1e-3, atol=1e-4)


@given(SEEDS, st.integers(1, 4), st.integers(1, 3))
@settings(deadline=None, max_examples=30)
def test_likeness_is_that_of_every_row_alone(seed: int, rows: int, slots: int) -> None:
    generator = np.random.default_rng(seed)
    ours, theirs = generator.normal(size=(2, rows, slots, 20)).astype(np.float32)

    found = compare(ours, theirs)

    for a in range(slots):
        for b in range(slots):
            errors = [
                np.linalg.norm(ours[t, a] - theirs[t, b]) / np.linalg.norm(theirs[t, b])
                for t in range(rows)
            ]
            np.testing.assert_allclose(found.error[a, b], np.median(errors), rtol=1e-4)


def test_a_scaled_slot_is_known_by_its_factor_and_leaves_no_rest() -> None:
    states = np.random.default_rng(0).normal(size=(16, 2, 50)).astype(np.float32)

    found = compare(states * 0.9, states)

    np.testing.assert_allclose(found.scale, 0.9, rtol=1e-4)
    assert found.rest.max() < 1e-3
    np.testing.assert_allclose(np.diag(found.error), 0.1, rtol=1e-3)


def test_shared_beginnings_are_found_the_longest_first() -> None:
    generator = np.random.default_rng(0)
    first, second = np.arange(16, dtype=np.int32), np.array([7, 7, 7, 7], np.int32)
    beginnings = [first] * 9 + [np.concatenate([second, generator.integers(9, 99, 12)])] * 0
    beginnings += [
        np.concatenate([second, generator.integers(100, 999, 12, dtype=np.int32)]) for _ in range(8)
    ]
    states = [np.full((16, 1, 2), at, np.float32) for at in range(17)]

    found = find_references(beginnings, states)

    assert [len(one.ids) for one in found] == [16, 4]
    np.testing.assert_array_equal(found[0].states, np.full((16, 1, 2), 4))
    assert reference_of(found, np.array([7, 7, 7, 7, 1], np.int32)) is found[1]
    assert reference_of(found, np.array([7, 7, 7], np.int32)) is None


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_all_element_types_become_float32(dtype: str) -> None:
    values = np.array([1.5, -2.0, 0.0], dtype)
    bits = values.view(f"<u{values.itemsize}")

    np.testing.assert_array_equal(to_float32(bits, dtype), values.astype(np.float32))  # type: ignore[arg-type]


def test_bfloat16_becomes_float32_bit_for_bit() -> None:
    bits = np.arange(0x7F80, dtype=np.uint16)
    np.testing.assert_array_equal(bits_of(to_float32(bits, "bfloat16")), bits)

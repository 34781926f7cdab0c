"""Figures of the canary: what differs by how much, and what follows. No server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from extraction.canary import canary_rows, choose_samples
from extraction.deviation import (
    FLOORS,
    ROWS_AT_ONCE,
    Deviations,
    row_differences,
    smallest_threshold,
)
from hsstore.dtype import bits_dtype, native_dtype

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.dtype import DTypeName

SLOTS, HIDDEN = 3, 32
THRESHOLD = smallest_threshold("bfloat16", quantised=False)


def make_bits(values: npt.NDArray[Any], dtype: DTypeName = "bfloat16") -> npt.NDArray[Any]:
    """Return the bit patterns of float values."""
    return values.astype(native_dtype(dtype)).view(bits_dtype(dtype))


def make_states(rows: int, seed: int = 0) -> npt.NDArray[np.float64]:
    """Return (rows, SLOTS, HIDDEN) values."""
    return np.random.default_rng(seed).normal(size=(rows, SLOTS, HIDDEN))


@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 2 * ROWS_AT_ONCE + 1),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    row=st.floats(0, 1, exclude_max=True),
    slot=st.integers(0, SLOTS - 1),
    factor=st.sampled_from([0.5, 2.0, -1.0]),
)
@settings(deadline=None, max_examples=50)
def test_a_difference_is_found_where_it_is_and_nowhere_else(
    seed: int, rows: int, dtype: DTypeName, row: float, slot: int, factor: float
) -> None:
    values = make_states(rows, seed)
    changed = values.copy()
    at = int(row * rows)
    changed[at, slot] *= factor
    before, after = make_bits(values, dtype), make_bits(changed, dtype)

    found = row_differences(before, after, dtype)

    assert found[at, slot] == pytest.approx(abs(factor - 1), rel=1e-6)
    found[at, slot] = 0
    assert not found.any()
    assert not row_differences(before, before, dtype).any()


def test_a_row_of_zeros_that_became_something_is_infinitely_far() -> None:
    zeros, ones = np.zeros((1, SLOTS, HIDDEN)), np.ones((1, SLOTS, HIDDEN))

    assert row_differences(make_bits(zeros), make_bits(zeros), "bfloat16").tolist() == [[0] * 3]
    assert np.isinf(row_differences(make_bits(zeros), make_bits(ones), "bfloat16")).all()


def test_rounding_to_bfloat16_at_every_layer_stays_below_the_threshold() -> None:
    """A residual stream of 61 layers, summed up in two orders, rounded after each addition."""
    deltas = np.random.default_rng(0).normal(size=(61, 200, SLOTS, HIDDEN))
    noise = np.random.default_rng(1).normal(size=deltas.shape) * 2**-8
    native = native_dtype("bfloat16")
    one = np.zeros(deltas.shape[1:], native)
    other = one.copy()
    for delta, error in zip(deltas, noise, strict=True):
        one = (one.astype(np.float64) + delta).astype(native)
        other = (other.astype(np.float64) + delta * (1 + error)).astype(native)
    found = Deviations(SLOTS, THRESHOLD)

    for sample in range(3):
        found.add(sample, row_differences(one.view("<u2"), other.view("<u2"), "bfloat16"))

    assert found.record([0, 1, 2], 200, 1).verdict == "same"
    assert 0 < found.slots()[0].worst < THRESHOLD


@given(
    medians=st.lists(st.floats(0, 0.3), min_size=1, max_size=4),
    floor=st.floats(0, 0.05),
    spikes=st.floats(0, 1),
)
@settings(deadline=None)
def test_only_the_median_rows_of_several_samples_make_a_slot_wrong(
    medians: list[float], floor: float, spikes: float
) -> None:
    found = Deviations(SLOTS, THRESHOLD)
    found.add_repeat(np.full((9, SLOTS), floor))
    for sample, median in enumerate(medians):
        rows = np.zeros((9, SLOTS))
        rows[:, 1] = median
        rows[:4, 2] = spikes  # fewer than half of the rows
        found.add(sample, rows)

    limit = max(THRESHOLD, FLOORS * floor)
    beyond = sum(median > limit for median in medians)
    quiet, moved, jumped = found.slots()
    assert quiet.verdict == "same"
    assert moved.verdict == ("same" if not beyond else "one-sample" if beyond == 1 else "wrong")
    assert jumped.verdict == ("rows" if spikes > limit else "same")
    assert (moved.median, moved.floor, moved.threshold) == (max(medians), floor, limit)
    assert (jumped.median, jumped.worst, jumped.samples) == (0, spikes, len(medians))


def test_a_sample_that_was_wrong_once_stays_so_whatever_comes_later() -> None:
    found = Deviations(1, THRESHOLD)
    wrong, good = np.full((5, 1), 0.5), np.zeros((5, 1))

    found.add(1, wrong)
    found.add(1, good)
    found.add(2, wrong)

    assert found.beyond(0) == [1, 2]
    assert found.record([1, 2], 5, 2).verdict == "wrong"


def test_nothing_compared_is_no_verdict() -> None:
    assert Deviations(SLOTS, THRESHOLD).record([], 0, 0).verdict == "not-compared"


@given(pending=st.integers(0, 10**12))
def test_the_cost_of_a_canary_is_bounded(pending: int) -> None:
    rows = canary_rows(pending)

    assert 32 <= rows <= 1024
    assert rows == 32 or rows <= pending / 2000


@given(
    length=st.lists(st.integers(1, 100), max_size=30),
    rows=st.integers(1, 100),
    count=st.integers(1, 4),
)
def test_samples_are_chosen_once_each_and_long_ones_first(
    length: list[int], rows: int, count: int
) -> None:
    chosen = choose_samples(np.array(length, np.int32), rows, count)

    enough = sum(one >= rows for one in length)
    assert len(set(chosen)) == len(chosen) == min(count, len(length))
    assert sum(length[one] >= rows for one in chosen) == min(count, enough)

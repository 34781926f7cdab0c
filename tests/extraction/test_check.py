"""What a dump must be before it may be committed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st

from extraction.check import find_token_fault
from hsstore.digest import PayloadHasher, payload_digest
from hsstore.plausible import find_state_fault, rows_at_once
from hsstore.spec import FailureReason
from hsstore.testing.stores import make_model

MODEL = make_model()
PIECE_ROWS = rows_at_once(MODEL.slots * MODEL.hidden * 2)
ROWS = PIECE_ROWS + 10
"""More than one pass."""
QUIET_NAN, INFINITY, MINUS_INFINITY, MINUS_ZERO = 0x7FC0, 0x7F80, 0xFF80, 0x8000


def healthy(rows: int = ROWS) -> npt.NDArray[np.uint16]:
    """Return bits of bfloat16 states."""
    shape = (rows, MODEL.slots, MODEL.hidden)
    values = np.random.default_rng(rows).normal(size=shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("rows", [1, PIECE_ROWS, PIECE_ROWS + 1, ROWS])
def test_healthy_states_pass_and_are_hashed_whole(rows: int) -> None:
    states, hasher = healthy(rows), PayloadHasher()

    assert find_state_fault(states, rows, MODEL, hasher) is None
    assert hasher.digest() == payload_digest(states)


def test_a_row_that_begins_with_zeros_is_healthy() -> None:
    states = healthy()
    states[5, 1, :-1] = MINUS_ZERO

    assert find_state_fault(states, ROWS, MODEL) is None


def test_the_largest_and_the_smallest_finite_values_are_healthy() -> None:
    states = healthy()
    states[7, 0, :2] = INFINITY - 1, MINUS_INFINITY - 1

    assert find_state_fault(states, ROWS, MODEL) is None


@given(
    row=st.integers(0, ROWS - 1),
    slot=st.integers(0, MODEL.slots - 1),
    column=st.integers(0, MODEL.hidden - 1),
    value=st.sampled_from([QUIET_NAN, 0xFFFF, 0x7F81, INFINITY, MINUS_INFINITY]),
)
def test_one_value_that_is_not_finite_is_found_wherever_it_is(
    row: int, slot: int, column: int, value: int
) -> None:
    states = healthy()
    states[row, slot, column] = value

    fault = find_state_fault(states, ROWS, MODEL)

    assert fault is not None
    assert fault.reason is FailureReason.NOT_FINITE
    assert fault.message == f"row {row}, slot {slot} holds an infinity or a NaN"


@given(
    row=st.integers(0, ROWS - 1),
    slot=st.integers(0, MODEL.slots - 1),
    zero=st.sampled_from([0, MINUS_ZERO]),
)
def test_a_row_of_zeros_is_found_wherever_it_is(row: int, slot: int, zero: int) -> None:
    states = healthy()
    states[row, slot] = zero

    fault = find_state_fault(states, ROWS, MODEL)

    assert fault is not None
    assert fault.reason is FailureReason.BAD_DATA
    assert fault.message == f"row {row}, slot {slot} is all zeros"


def test_two_slots_that_are_equal_in_every_row_are_found_and_one_other_row_is_enough() -> None:
    states = healthy()
    states[:, 2] = states[:, 1]

    fault = find_state_fault(states, ROWS, MODEL)
    states[-1, 2] = states[-1, 0]
    other = find_state_fault(states, ROWS, MODEL)

    assert fault is not None
    assert fault.message == "slots 1 and 2 are equal in every row"
    assert other is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_other_element_types_are_checked_too(dtype: Any) -> None:
    model = make_model(np.dtype(dtype).name)
    values = np.random.default_rng(0).normal(size=(5, model.slots, model.hidden)).astype(dtype)
    bits = values.view(f"<u{values.itemsize}")
    before = find_state_fault(bits, 5, model)
    values[3, 1, 2] = np.inf

    fault = find_state_fault(bits, 5, model)

    assert before is None
    assert fault is not None
    assert fault.message.startswith("row 3, slot 1 ")


@pytest.mark.parametrize("shape", [(4, 3, 16), (5, 2, 16), (5, 3, 15), (5, 48)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    fault = find_state_fault(np.ones(shape, np.uint16), 5, MODEL)

    assert fault is not None
    assert fault.message == f"states have shape {shape}, the plan has (5, 3, 16)"


def test_tokens_must_be_those_of_the_plan() -> None:
    plan = np.arange(5, dtype=np.int32)
    wrong = np.array([0, 1, 9, 3, 8], np.int32)

    same = find_token_fault(plan.copy(), plan)
    short = find_token_fault(plan[:4], plan)
    other = find_token_fault(wrong, plan)

    assert same is None
    assert short is not None
    assert short.message == "4 tokens, the plan has 5"
    assert other is not None
    assert other.message == "token 2 is 9, the plan has 2 (2 differ)"

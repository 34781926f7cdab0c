"""Faults that the study plants in a sample's states, and the kind that is right for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from hsstore.report import SemanticKind as Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    States = npt.NDArray[np.uint16]

PIECE_ROWS = 64
MISSING_ROWS = 60
ZERO_SHARE = 0.7
AUX = (0, 1, 2)
FINAL = 3
ALL = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Case:
    """A sample, and what a fault may take from elsewhere; states are raw bits (T, slots, hidden)."""

    states: States
    other: States
    """Of another conversation, at least as long."""
    norm_weight: npt.NDArray[np.float32]
    models: dict[str, States]
    """Of the same tokens by other models; the first rows of the sample, or all."""
    seed: int


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    name: str
    right: Kind | None
    """The kind that names it; None where nobody promises to see it."""
    plant: Callable[[Case], States]
    needs_model: bool = False
    """It takes states from `Case.models`."""
    alone: bool = False
    """The sample counts as one whose beginning no other shares."""


def _floats(bits: States) -> npt.NDArray[np.float32]:
    return np.asarray(bits.view(ml_dtypes.bfloat16).astype(np.float32))


def _bits(values: npt.NDArray[Any]) -> States:
    return np.asarray(values.astype(ml_dtypes.bfloat16).view(np.uint16))


def shift(away: int, slots: Sequence[int]) -> Callable[[Case], States]:
    """Let row t hold row t + away; the rows at the end stay."""

    def plant(case: Case) -> States:
        states = case.states.copy()
        here, there = (
            slice(max(0, -away), len(states) - max(0, away)),
            slice(max(0, away), len(states) - max(0, -away)),
        )
        for slot in slots:
            states[here, slot] = case.states[there, slot]
        return states

    return plant


def swap(slots: Sequence[int]) -> Callable[[Case], States]:
    """Put in the rows of another sample of the same length."""

    def plant(case: Case) -> States:
        states = case.states.copy()
        for slot in slots:
            states[:, slot] = case.other[: len(states), slot]
        return states

    return plant


def piece(slots: Sequence[int]) -> Callable[[Case], States]:
    """Put in 64 rows of another sample, in the middle."""

    def plant(case: Case) -> States:
        states = case.states.copy()
        first = (len(states) - PIECE_ROWS) // 2
        rows = slice(first, first + PIECE_ROWS)
        for slot in slots:
            states[rows, slot] = case.other[rows, slot]
        return states

    return plant


def permute(order: Sequence[int]) -> Callable[[Case], States]:
    """Let slot s hold slot order[s]."""
    return lambda case: case.states[:, list(order)].copy()


def scale(factor: float, slots: Sequence[int]) -> Callable[[Case], States]:
    """Multiply."""

    def plant(case: Case) -> States:
        states = case.states.copy()
        for slot in slots:
            states[:, slot] = _bits(_floats(np.ascontiguousarray(states[:, slot])) * factor)
        return states

    return plant


def duplicate(source: int, target: int) -> Callable[[Case], States]:
    """Let one slot hold another's rows as well."""

    def plant(case: Case) -> States:
        states = case.states.copy()
        states[:, target] = states[:, source]
        return states

    return plant


def zero_rows(case: Case) -> States:
    """Set 70 % of the rows to zero."""
    states = case.states.copy()
    states[np.random.default_rng(case.seed).random(len(states)) < ZERO_SHARE] = 0
    return states


def zero_tail(case: Case) -> States:
    """Set the last 16 rows to zero."""
    states = case.states.copy()
    states[-16:] = 0
    return states


def missing(case: Case) -> States:
    """Lose the first 60 rows; the rest moves up, and what another sample left stays behind it."""
    states = case.states.copy()
    states[:-MISSING_ROWS] = case.states[MISSING_ROWS:]
    states[-MISSING_ROWS:] = case.other[len(states) - MISSING_ROWS : len(states)]
    return states


def infinities(case: Case) -> States:
    """Set one number to infinity, and one to NaN."""
    states = case.states.copy()
    states[len(states) // 2, 1, 5] = 0x7F80
    states[len(states) // 3, 3, 7] = 0x7FC0
    return states


def noise(case: Case) -> States:
    """Draw every number anew, with the mean and the deviation of its channel."""
    values = _floats(case.states)
    generator = np.random.default_rng(case.seed)
    mean, deviation = values[3:].mean(axis=0), values[3:].std(axis=0)
    return _bits(mean + deviation * generator.standard_normal(values.shape))


def fp8(case: Case) -> States:
    """Round to float8 e4m3, and back."""
    values = np.clip(_floats(case.states), -448, 448)
    return _bits(values.astype(ml_dtypes.float8_e4m3fn).astype(np.float32))


def fp16(case: Case) -> States:
    """Round to float16, and back: bfloat16's numbers go through unharmed."""
    return _bits(_floats(case.states).astype(np.float16).astype(np.float32))


def normed_twice(case: Case) -> States:
    """Apply the final norm once more."""
    states = case.states.copy()
    final = _floats(np.ascontiguousarray(states[:, FINAL]))
    size = np.sqrt(np.square(final).mean(axis=1, keepdims=True) + 1e-5)
    states[:, FINAL] = _bits(final / size * case.norm_weight)
    return states


def of_model(name: str, slots: Sequence[int] = ALL) -> Callable[[Case], States]:
    """Put in what another model computes of the same tokens."""

    def plant(case: Case) -> States:
        states = case.states.copy()
        for slot in slots:
            states[:, slot] = case.models[name][:, slot]
        return states

    return plant


FAULTS: tuple[Fault, ...] = (
    Fault("rows +1, all slots", Kind.ROWS_SHIFTED, shift(1, ALL)),
    Fault("rows -1, all slots", Kind.ROWS_SHIFTED, shift(-1, ALL)),
    Fault("rows +1, auxiliary only", Kind.ROWS_SHIFTED, shift(1, AUX)),
    Fault("rows -1, auxiliary only", Kind.ROWS_SHIFTED, shift(-1, AUX)),
    Fault("rows +1, slot 0 only", Kind.ROWS_SHIFTED, shift(1, [0])),
    Fault("rows +1, slot 1 only", Kind.ROWS_SHIFTED, shift(1, [1])),
    Fault("rows +1, slot 2 only", Kind.ROWS_SHIFTED, shift(1, [2])),
    Fault("rows +1, final only", Kind.ROWS_SHIFTED, shift(1, [FINAL])),
    Fault("rows -1, final only", Kind.ROWS_SHIFTED, shift(-1, [FINAL])),
    Fault("swapped, whole", Kind.WRONG_TOKENS, swap(ALL)),
    Fault("swapped, slot 0", Kind.WRONG_TOKENS, swap([0])),
    Fault("swapped, slot 1", Kind.WRONG_TOKENS, swap([1])),
    Fault("swapped, slot 2", Kind.WRONG_TOKENS, swap([2])),
    Fault("swapped, final", Kind.WRONG_TOKENS, swap([FINAL])),
    Fault("layer + 1", Kind.WRONG_MODEL, of_model("layer+1", AUX), needs_model=True),
    Fault("other model, weights 1 %", Kind.WRONG_MODEL, of_model("1%"), needs_model=True),
    Fault("other model, weights 5 %", Kind.WRONG_MODEL, of_model("5%"), needs_model=True),
    Fault("other model, weights 20 %", Kind.WRONG_MODEL, of_model("20%"), needs_model=True),
    Fault("slots 0 and 1 permuted", Kind.SLOTS_PERMUTED, permute([1, 0, 2, 3])),
    Fault("slots 1 and 2 permuted", Kind.SLOTS_PERMUTED, permute([0, 2, 1, 3])),
    Fault("slot 2 and final permuted", Kind.SLOTS_PERMUTED, permute([0, 1, 3, 2])),
    Fault("slots reversed", Kind.SLOTS_PERMUTED, permute([3, 2, 1, 0])),
    Fault("pre-norm in final", Kind.NOT_NORMED, of_model("pre-norm", [FINAL]), needs_model=True),
    Fault("norm applied twice", Kind.NORMED_AGAIN, normed_twice),
    Fault("the same, beginning not shared", Kind.NORMED_AGAIN, normed_twice, alone=True),
    Fault("x 1/2, all slots", Kind.SCALED, scale(1 / 2, ALL)),
    Fault("x 1/8, all slots", Kind.SCALED, scale(1 / 8, ALL)),
    Fault("x 1/2, auxiliary only", Kind.SCALED, scale(1 / 2, AUX)),
    Fault("x 1/2, slot 2 only", Kind.SCALED, scale(1 / 2, [2])),
    Fault("x 0.9, all slots", Kind.SCALED, scale(0.9, ALL)),
    Fault("x 0.9, auxiliary only", Kind.SCALED, scale(0.9, AUX)),
    Fault("piece of 64, all slots", Kind.FOREIGN_PIECE, piece(ALL)),
    Fault("piece of 64, slot 0", Kind.FOREIGN_PIECE, piece([0])),
    Fault("piece of 64, slot 1", Kind.FOREIGN_PIECE, piece([1])),
    Fault("piece of 64, slot 2", Kind.FOREIGN_PIECE, piece([2])),
    Fault("piece of 64, final", Kind.FOREIGN_PIECE, piece([FINAL])),
    Fault("70 % zero rows", Kind.ZERO_ROWS, zero_rows),
    Fault("16 zero rows at the end", Kind.ZERO_ROWS, zero_tail),
    Fault("slot 1 in slot 2 as well", Kind.EQUAL_SLOTS, duplicate(1, 2)),
    Fault("slot 2 in slot 1 as well", Kind.EQUAL_SLOTS, duplicate(2, 1)),
    Fault("final in slot 2 as well", Kind.EQUAL_SLOTS, duplicate(FINAL, 2)),
    Fault("60 first rows missing", Kind.ROWS_SHIFTED, missing),
    Fault("an infinity and a NaN", Kind.NOT_FINITE, infinities),
    Fault("fp8 round trip", Kind.ROUNDED, fp8),
    Fault("noise of mean and deviation", Kind.NOISE, noise),
    Fault("fp16 round trip", None, fp16),
    Fault("other model, int8 weights", None, of_model("int8"), needs_model=True),
)
"""What is planted; those without a right kind are reported as they come out."""

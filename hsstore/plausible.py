"""Are states what a model can have given? Whatever goes into a store passes here first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.activity import tick
from hsstore.dtype import infinity_bits, is_finite, largest_magnitude
from hsstore.spec import FailureReason

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.digest import PayloadHasher
    from hsstore.spec import Model

PIECE_BYTES = 1 << 20
"""So much of the states is checked at once: it stays in the cache until it is hashed. Smaller pieces
spend more time waiting for the GIL, which the encoders want too."""
GLANCE_VALUES = 16
"""Of every row: where all of them are zeros, all values are looked at."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with states. Returned, not raised: a traceback would keep their pages mapped."""

    reason: FailureReason
    """What to record if the sample is given up."""
    message: str


def find_state_fault(
    bits: npt.NDArray[Any], rows: int, model: Model, hasher: PayloadHasher | None = None
) -> Fault | None:
    """Check the shape and the plausibility of states.

    No infinity or NaN, no row of zeros, no two slots that are equal throughout.

    Parameters
    ----------
    bits : uint16 or uint32 (T, slots, hidden)
        Raw bit patterns.
    rows : int
        T of the plan.
    hasher : PayloadHasher, optional
        Is given the states as they are checked; where there is no fault, all of them.
    """
    expected = (rows, model.slots, model.hidden)
    if bits.shape != expected:
        message = f"states have shape {bits.shape}, the plan has {expected}"
        return Fault(FailureReason.BAD_DATA, message)
    equal_slots = [(a, b) for a in range(model.slots) for b in range(a + 1, model.slots)]
    step = rows_at_once(model.slots * model.hidden * bits.itemsize)
    no_zeros = bool(largest_magnitude(bits[..., :GLANCE_VALUES], model.dtype).all())
    for start in range(0, rows, step):
        part = bits[start : start + step]
        is_good = no_zeros and is_finite(part, model.dtype)
        fault = None if is_good else _find_value_fault(part, start, model)
        tick()  # a long sample takes its time: it is slow, not stalled
        if fault is not None:
            return fault
        if hasher is not None:
            hasher.update(part)
        equal_slots = [(a, b) for a, b in equal_slots if np.array_equal(part[:, a], part[:, b])]
    if equal_slots:
        a, b = equal_slots[0]
        return Fault(FailureReason.BAD_DATA, f"slots {a} and {b} are equal in every row")
    return None


def rows_at_once(row_bytes: int) -> int:
    """Return how many rows are checked in one go."""
    return max(PIECE_BYTES // row_bytes, 1)


def _find_value_fault(part: npt.NDArray[Any], start: int, model: Model) -> Fault | None:
    largest = largest_magnitude(part, model.dtype)
    bad = np.argwhere(largest >= infinity_bits(model.dtype))
    if bad.size:
        row, slot = bad[0].tolist()
        message = f"row {start + row}, slot {slot} holds an infinity or a NaN"
        return Fault(FailureReason.NOT_FINITE, message)
    zero = np.argwhere(largest == 0)
    if zero.size:
        row, slot = zero[0].tolist()
        return Fault(FailureReason.BAD_DATA, f"row {start + row}, slot {slot} is all zeros")
    return None

"""Two sets of states of the same tokens, row by row and slot by slot: how equal they are. Pure.

Single rows may jump without anything being wrong (see `extraction.deviation`); the median row does not, nor
do many rows in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from extraction.deviation import ROWS_AT_ONCE, row_differences
from hsstore.dtype import native_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from hsstore.dtype import DTypeName
    from hsstore.report import AgainstVerdict

    Floats = npt.NDArray[np.float64]

MANY_ROWS = 8
"""So many rows in a row beyond the tolerance are no accident: in a mixture of experts, 7 % of the rows may
be, each by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """How the states of one sample compare.

    Attributes
    ----------
    difference : float64 (T, slots)
        |new - stored| / |stored| of each row; infinite where that is no number.
    cosine : float64 (T, slots)
        Of the two rows; 0 where one of them is no direction.
    equal : float64 (slots,)
        Share of the values that are equal bit by bit.
    """

    difference: Floats
    cosine: Floats
    equal: Floats

    @property
    def median(self) -> Floats:
        """The median row's difference, shape (slots,)."""
        return np.asarray(np.median(self.difference, axis=0))


def compare(
    stored: Callable[[slice], npt.NDArray[Any]],
    new: npt.NDArray[Any],
    dtype: DTypeName,
    step_rows: int = ROWS_AT_ONCE,
) -> Comparison:
    """Compare states with stored ones, a few rows at a time.

    Parameters
    ----------
    stored : callable
        Returns the raw bits of some rows, uint16 or uint32 (rows, slots, hidden).
    new : uint16 or uint32 (T, slots, hidden)
    step_rows : int
        Rows that are asked for at once.
    """
    rows, slots, hidden = new.shape
    difference, cosine = np.empty((rows, slots)), np.empty((rows, slots))
    equal = np.zeros(slots, np.int64)
    for start in range(0, rows, step_rows):
        part = slice(start, min(start + step_rows, rows))
        old = stored(part)
        equal += (old == new[part]).sum(axis=(0, 2))
        with np.errstate(all="ignore"):
            difference[part] = row_differences(old, new[part], dtype)
        cosine[part] = _cosines(old, new[part], dtype)
    difference[np.isnan(difference)] = np.inf
    return Comparison(difference, cosine, equal / (rows * hidden))


def _cosines(old: npt.NDArray[Any], new: npt.NDArray[Any], dtype: DTypeName) -> Floats:
    """Return the cosine of each row, shape (rows, slots)."""
    found = np.empty(old.shape[:2])
    for start in range(0, len(old), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        a, b = (bits[part].view(native_dtype(dtype)).astype(np.float64) for bits in (old, new))
        with np.errstate(all="ignore"):
            size = np.linalg.norm(a, axis=2) * np.linalg.norm(b, axis=2)
            found[part] = np.einsum("tsh,tsh->ts", a, b) / size
    return np.nan_to_num(found, nan=0.0)


def judge(found: Comparison, tolerance: Floats) -> list[tuple[AgainstVerdict, str]]:
    """Judge each slot, and say what is beyond its tolerance.

    Parameters
    ----------
    tolerance : float64 (slots,)
        Largest difference of a row that is none.
    """
    return [_judge_slot(found, slot, float(limit)) for slot, limit in enumerate(tolerance)]


def _judge_slot(found: Comparison, slot: int, limit: float) -> tuple[AgainstVerdict, str]:
    difference = found.difference[:, slot]
    if found.equal[slot] == 1:
        return "equal", ""
    beyond = difference > limit
    if not beyond.any():
        return "same", ""
    if (median := found.median[slot]) > limit:
        return "differs", f"slot {slot}: the median row differs by {median:.2%}"
    first, count = longest_run(beyond)
    if count >= MANY_ROWS:
        worst = difference[first : first + count].max()
        return (
            "differs",
            f"slot {slot}: rows {first} to {first + count - 1} differ by up to {worst:.2%}",
        )
    single = f"slot {slot}: {int(beyond.sum())} single rows differ by up to {difference.max():.2%}"
    return "rows", single


def longest_run(marks: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return where the longest run of marks begins, and its length.

    >>> longest_run(np.array([True, False, True, True, False])), longest_run(np.array([False]))
    ((2, 2), (0, 0))
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]])))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    if not lengths.size:
        return 0, 0
    at = int(lengths.argmax())
    return int(starts[at]), int(lengths[at])

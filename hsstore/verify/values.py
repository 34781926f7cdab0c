"""Look at values: what no model gives, and how large its states are. Pure numpy, on raw bits.

All values are looked at where they lie. Copies are made of single rows, and of the first values of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from hsstore.dtype import infinity_bits, largest_magnitude, native_dtype

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.dtype import DTypeName

GLANCE_BYTES = 8
"""Of every row: where these values differ, a row is neither zero nor constant, nor equal to another one."""
FEW_VALUES = 16
"""Fewer values can be equal by chance."""
NORM_EVERY_ROWS = 128
"""One row in so many, the first one included, is taken into the norm profile."""
PARTS_AT_ONCE = 8
"""Whose norms are computed together: few rows of each are, and every call has its price."""
BINS_AN_OCTAVE = 8
LEAST_OCTAVE, OCTAVES = -24, 64
NORM_BINS = OCTAVES * BINS_AN_OCTAVE
"""Bins of the norm profile: from 2**-24 to 2**40, eight an octave."""


@dataclass(slots=True)
class Rows:
    """Rows of a sample that have something in common: how many, and the first."""

    count: int = 0
    first: int = -1

    def add(self, start: int, wrong: npt.NDArray[np.bool_]) -> None:
        """Take what was found in the rows from `start` on, bool (rows,)."""
        rows = np.flatnonzero(wrong)
        if rows.size:
            self.first = start + int(rows[0]) if self.first < 0 else self.first
            self.count += rows.size

    @override
    def __str__(self) -> str:
        return (
            f"{self.count} rows, first in row {self.first}"
            if self.count > 1
            else f"row {self.first}"
        )


@dataclass(slots=True)
class Values:
    """What one pass over a sample's values has seen.

    Parameters
    ----------
    slots : int
    mean_squares : list of float32 (rows, slots)
        Is given those of some rows.
    """

    dtype: DTypeName
    slots: int
    mean_squares: list[npt.NDArray[np.float32]]
    not_finite: Rows = field(default_factory=Rows)
    zero: Rows = field(default_factory=Rows)
    constant: Rows = field(default_factory=Rows)
    equal_slots: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of slots that have been equal in every row so far."""
    _norm_rows: list[npt.NDArray[Any]] = field(default_factory=list)
    """Rows whose norms are to be computed, several at once."""

    def __post_init__(self) -> None:
        self.equal_slots = list(combinations(range(self.slots), 2))

    def look_at(self, part: npt.NDArray[Any], start: int, *, is_finite: bool) -> None:
        """Take the rows from `start` on.

        Parameters
        ----------
        part : uint16 or uint32 (rows, slots, hidden)
            Raw bits, with any strides.
        is_finite : bool
            What the function of this name says of them.
        """
        if not is_finite:
            largest = largest_magnitude(part, self.dtype)
            wrong = np.asarray(largest >= infinity_bits(self.dtype))
            self.not_finite.add(start, np.asarray(wrong.any(axis=1)))
        self._find_plain_rows(part, start)
        if self.equal_slots:
            self._compare_slots(part)
        self._norm_rows.append(part[-start % NORM_EVERY_ROWS :: NORM_EVERY_ROWS].copy())
        if len(self._norm_rows) == PARTS_AT_ONCE:
            self.compute_norms()

    def compute_norms(self) -> None:
        """Compute the norms of the rows that were kept for it: after the last rows of a sample, too."""
        if not self._norm_rows:
            return
        some = as_float32(np.concatenate(self._norm_rows), self.dtype)
        self._norm_rows.clear()
        with np.errstate(all="ignore"):  # values that are not finite, or whose squares are not
            self.mean_squares.append(np.einsum("rsh,rsh->rs", some, some) / some.shape[2])

    def _compare_slots(self, part: npt.NDArray[Any]) -> None:
        """Keep the pairs of slots that are equal in these rows as well; most differ in the first row."""
        glance = part[0, :, : GLANCE_BYTES // part.itemsize].tolist()
        self.equal_slots = [
            (one, other)
            for one, other in self.equal_slots
            if glance[one] == glance[other] and np.array_equal(part[:, one], part[:, other])
        ]

    def _find_plain_rows(self, part: npt.NDArray[Any], start: int) -> None:
        """Find rows of zeros, and rows of any other number throughout."""
        plain = _may_be_plain(part)
        if not plain.any():
            return
        at = np.nonzero(plain)
        rows = part[at]
        largest = largest_magnitude(rows, self.dtype)
        zero, constant = np.zeros_like(plain), np.zeros_like(plain)
        zero[at] = largest == 0
        if part.shape[2] >= FEW_VALUES:
            is_number = (largest > 0) & (largest < infinity_bits(self.dtype))
            constant[at] = (rows == rows[:, :1]).all(axis=1) & is_number
        self.zero.add(start, np.asarray(zero.any(axis=1)))
        self.constant.add(start, np.asarray(constant.any(axis=1)))


def _may_be_plain(part: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mark the rows, bool (rows, slots), whose first values have one magnitude.

    They are compared as one integer: each row lies elsewhere in memory, and is touched once.
    """
    if part[0, 0].nbytes < GLANCE_BYTES:
        return np.ones(part.shape[:2], np.bool_)
    first = part[..., : GLANCE_BYTES // part.itemsize].view(np.uint64)[..., 0].copy()
    differ = first ^ (first >> _BITS[part.itemsize])
    return np.asarray(differ & _MAGNITUDES[part.itemsize] == 0)


_BITS = {2: np.uint64(16), 4: np.uint64(32)}
_MAGNITUDES = {2: np.uint64(0x7FFF_7FFF_7FFF), 4: np.uint64(0x7FFF_FFFF)}
"""By the size of a value: all values of a glance but the last, without their signs."""


def norm_histogram(
    mean_squares: list[npt.NDArray[np.float32]], slots: int
) -> npt.NDArray[np.int64]:
    """Count root mean squares by their size.

    Parameters
    ----------
    mean_squares : list of float32 (rows, slots)

    Returns
    -------
    int64 (slots, NORM_BINS)
    """
    squares = np.concatenate([np.empty((0, slots), np.float32), *mean_squares])
    with np.errstate(all="ignore"):  # zeros, and values that are not finite
        octaves = np.nan_to_num(np.log2(np.sqrt(squares)), nan=np.inf)
    bins = (np.clip(octaves - LEAST_OCTAVE, 0, OCTAVES) * BINS_AN_OCTAVE).astype(np.int64)
    bins = np.minimum(bins, NORM_BINS - 1) + np.arange(slots) * NORM_BINS
    return np.bincount(bins.ravel(), minlength=slots * NORM_BINS).reshape(slots, NORM_BINS)


def as_float32(bits: npt.NDArray[Any], dtype: DTypeName) -> npt.NDArray[np.float32]:
    """Return the values of raw bits as a float32 copy, of the same shape."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(bits).view(native_dtype(dtype)).astype(np.float32)

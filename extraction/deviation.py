"""How far states move when the same tokens are asked for again; when that is wrong. Pure.

States are compared row by row and slot by slot, by the relative difference in the 2-norm. Single
rows may jump without anything being wrong: where two experts of a mixture are nearly tied, the last
bit decides which one a token gets (5 to 7 % were seen in bfloat16). The median row does not care.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.dtype import native_dtype
from hsstore.spec import CanaryRecord, CanarySlot

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hsstore.dtype import DTypeName
    from hsstore.spec import CanaryVerdict

ROUNDING: dict[DTypeName, float] = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-11}
"""Spacing of the numbers that a model computes with, relative. Of float32 that of TF32: tensor cores
may use it."""
ROUNDINGS = 12
"""Another batch means other kernels and another order of sums. Each layer adds such noise, which
grows with about the root of their number. Measured against float32, a bfloat16 model's states are
off by 0.3 to 1.5 % (1 to 4 spacings), so two ways of computing may differ by 2 %; 12 spacings (4.7 %)
leave room for deeper models. Captures that miss a rank's part, or a layer, are off by more."""
QUANTISED_ROUNDINGS = 24
"""Where activations are quantised, to 8 bits or fewer, a difference in the last bit moves some of
them by a whole step, of 2^-4: noise is amplified before it adds up."""
FLOORS = 4
"""A server that does not even repeat itself may differ by so many times its own noise: a batch
brings another draw of the same noise, and more of it."""
SEVERAL = 2
"""Samples whose median row must be beyond the threshold: one could be odd by itself."""
ROWS_AT_ONCE = 128
"""Rows compared in one numpy pass: bounds the temporary memory."""
VERDICTS: tuple[CanaryVerdict, ...] = (
    "off",
    "isolated",
    "not-compared",
    "same",
    "rows",
    "one-sample",
    "wrong",
)
"""A canary's, the worst last."""


def row_differences(
    before: npt.NDArray[Any], after: npt.NDArray[Any], dtype: DTypeName
) -> npt.NDArray[np.float64]:
    """Return |after - before| / |before| of every row and slot.

    Parameters
    ----------
    before, after : uint16 or uint32 (T, slots, hidden)
        Raw bit patterns.

    Returns
    -------
    float64 (T, slots)
        Infinite where a row of zeros became something else.
    """
    found = np.empty(before.shape[:2])
    for start in range(0, len(before), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        a = before[rows].view(native_dtype(dtype)).astype(np.float64)
        b = after[rows].view(native_dtype(dtype)).astype(np.float64)
        moved, size = np.linalg.norm(b - a, axis=2), np.linalg.norm(a, axis=2)
        with np.errstate(divide="ignore", invalid="ignore"):
            found[rows] = np.where(moved == 0, 0.0, moved / size)
    return found


def smallest_threshold(dtype: DTypeName, *, quantised: bool) -> float:
    """Return the relative difference of a median row that rounding may explain."""
    return ROUNDING[dtype] * (QUANTISED_ROUNDINGS if quantised else ROUNDINGS)


class Deviations:
    """What was found so far, by slot.

    Parameters
    ----------
    slots : int
    smallest : float
        See `smallest_threshold`.
    """

    def __init__(self, slots: int, smallest: float) -> None:
        self._smallest = smallest
        self._floor = np.zeros(slots)
        self._medians: dict[int, npt.NDArray[np.float64]] = {}
        self._worst = np.zeros(slots)

    def add_repeat(self, differences: npt.NDArray[np.float64]) -> None:
        """Take two identical requests that were asked for alone; (T, slots), as compared."""
        self._floor = np.maximum(self._floor, np.median(differences, axis=0))

    def add(self, sample: int, differences: npt.NDArray[np.float64]) -> None:
        """Take a sample's states from within a batch, compared with those from alone; (T, slots)."""
        median = np.median(differences, axis=0)
        self._medians[sample] = np.maximum(self._medians.get(sample, median), median)
        self._worst = np.maximum(self._worst, differences.max(axis=0))

    @property
    def threshold(self) -> npt.NDArray[np.float64]:
        """The largest difference of a median row that is no fault, shape (slots,)."""
        return np.maximum(self._smallest, FLOORS * self._floor)

    def beyond(self, slot: int) -> list[int]:
        """Return the samples whose median row is beyond the threshold, in any check."""
        limit = self.threshold[slot]
        return sorted(sample for sample, found in self._medians.items() if found[slot] > limit)

    def slots(self) -> tuple[CanarySlot, ...]:
        """Sum up, slot by slot."""
        medians = np.array([*self._medians.values(), np.zeros_like(self._worst)])
        return tuple(
            CanarySlot(
                slot=slot,
                floor=float(self._floor[slot]),
                threshold=float(self.threshold[slot]),
                median=float(medians[:, slot].max()),
                worst=float(self._worst[slot]),
                samples=len(self._medians),
                verdict=self._verdict(slot),
            )
            for slot in range(len(self._worst))
        )

    def record(self, samples: Sequence[int], rows: int, checks: int) -> CanaryRecord:
        """Sum up for the run's record."""
        slots = self.slots()
        worst = max((one.verdict for one in slots), key=VERDICTS.index, default="not-compared")
        return CanaryRecord(
            verdict=worst, samples=tuple(samples), rows=rows, checks=checks, slots=slots
        )

    def _verdict(self, slot: int) -> CanaryVerdict:
        if not self._medians:
            return "not-compared"
        beyond = len(self.beyond(slot))
        if beyond:
            return "wrong" if beyond >= SEVERAL else "one-sample"
        return "rows" if self._worst[slot] > self.threshold[slot] else "same"

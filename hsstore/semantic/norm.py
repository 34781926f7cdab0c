"""The final norm, x / rms(x) * w: what it leaves behind, and how to take it back. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

SMALL = 1e-3
"""Weights under so much of the median one are left out: what was divided away cannot be read back."""


@dataclass(frozen=True, slots=True)
class FinalNorm:
    """The norm of one model.

    Attributes
    ----------
    weight : float32 (hidden,)
        What it multiplies by: 1 + w where the checkpoint has it so.
    inverse : float32 (hidden,)
        1 / weight; 0 where the weight is next to nothing.
    """

    weight: npt.NDArray[np.float32]
    inverse: npt.NDArray[np.float32]
    epsilon: float

    @classmethod
    def of(cls, weight: npt.NDArray[np.float32], epsilon: float) -> FinalNorm:
        """Make one from a store's `norm_weight`."""
        size = np.abs(weight)
        usable = size > SMALL * np.median(size)
        inverse = np.where(usable, 1 / np.where(usable, weight, 1), 0)
        return cls(weight, inverse.astype(np.float32), epsilon)

    def factors(self, final: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return rms(final / w) of each row, (n,): 1 behind the norm, whatever came into it."""
        count = np.count_nonzero(self.inverse)
        return np.asarray(np.sqrt(np.square(final) @ (np.square(self.inverse) / count)))

    def apply(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Apply it."""
        mean = np.einsum("ij,ij->i", states, states) / states.shape[1]
        return np.asarray(states / np.sqrt(mean + self.epsilon)[:, None] * self.weight)

    def undo(self, final: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Take it back once from states that it was applied to twice."""
        once = final * self.inverse
        return np.asarray(once / np.maximum(self.factors(once), 1e-20)[:, None])

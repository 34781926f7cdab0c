"""What a store gives: one sample, and which samples are complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sample, unshifted: row t holds token t and the states at token t.

    Attributes
    ----------
    input_ids : int32 (T,)
    loss_mask : uint8 (T,)
        1 where the token itself is supervised.
    hidden_states : bfloat16, float16 or float32 (T, slots, hidden)
        The captured layers in ascending order, then the final state.
    """

    index: int
    sample_id: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    hidden_states: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """The completion arrays of some samples, as they were read: `complete` first."""

    complete: npt.NDArray[np.bool_]
    failed: npt.NDArray[np.uint8]
    digest: npt.NDArray[np.uint64]

    @property
    def pending(self) -> npt.NDArray[np.bool_]:
        """Samples that are neither complete nor failed."""
        return np.asarray(~self.complete & (self.failed == 0))

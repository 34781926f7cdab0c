"""Files of home-made pipelines: one `.pt` a sample, with tokens and the states of all slots.

======================  ====================================================
`input_ids`             [T] or [1, T], or a list
`loss_mask`             the same, or absent
`hidden_states`         [T, slots, H]; [T, slots * H]; or a list of [T, H] (or [1, T, H]), slot by slot
`sample_id`             str, or absent
======================  ====================================================

Which layers these are, and whether the final state is before the norm, no such file says. int16 or uint16
are taken for the bits of bfloat16, which NumPy does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hsstore.dtype import native_dtype
from hsstore.errors import InputError
from hsstore.formats.sample import ForeignSample, ForeignTokens, take, take_matrix, take_row

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.formats.sample import Content, Hints


class Seed:
    """See the module."""

    name: Final = "seed"

    def path(self, row: int, sample_id: str) -> str:  # noqa: ARG002  # of the protocol
        """Return `data_ROW.pt`."""
        return f"data_{row}.pt"

    def write_sample(self, sample: ForeignSample) -> Content:
        """Return the values of a file."""
        content: dict[str, Any] = {
            "input_ids": sample.input_ids.astype(np.int64),
            "hidden_states": np.ascontiguousarray(sample.states),
        }
        if sample.loss_mask is not None:
            content["loss_mask"] = sample.loss_mask.astype(np.int64)
        if sample.sample_id:
            content["sample_id"] = sample.sample_id
        return content

    def read_tokens(self, content: Content) -> ForeignTokens:
        """Return tokens, and mask and id where a file has them."""
        ids = take_row(content, "input_ids", np.int32)
        mask = take_row(content, "loss_mask", np.uint8) if "loss_mask" in content else None
        return ForeignTokens(ids, mask, str(content.get("sample_id", "")))

    def read_sample(self, content: Content, hints: Hints) -> ForeignSample:
        """Return the sample of a file."""
        tokens = self.read_tokens(content)
        states = _floats(_slots(content, len(tokens.input_ids), hints.slots))
        return ForeignSample(
            tokens.input_ids, tokens.loss_mask, states, hints.final, tokens.sample_id
        )


def _slots(content: Content, rows: int, slots: int) -> npt.NDArray[Any]:
    """Return states of shape (rows, slots, hidden), however they are put together."""
    values = take(content, "hidden_states")
    if isinstance(values, list | tuple):
        named = {f"hidden_states[{slot}]": one for slot, one in enumerate(values)}
        parts = [take_matrix(named, name, rows) for name in named]
        if len(parts) != slots or len({part.shape for part in parts}) != 1:
            shapes = ", ".join(str(part.shape) for part in parts)
            raise InputError(
                f"'hidden_states' is a list of {shapes}, expected {slots} equal shapes"
            )
        return np.stack(parts, axis=1)
    states = np.asarray(values)
    if states.ndim == 4 and len(states) == 1:
        states = states[0]
    if states.ndim == 2 and len(states) == rows and states.shape[1] % slots == 0:
        return states.reshape(rows, slots, -1)
    if states.ndim != 3 or states.shape[:2] != (rows, slots):
        raise InputError(
            f"'hidden_states' has shape {states.shape}, expected ({rows}, {slots}, hidden) or "
            f"({rows}, {slots} * hidden)"
        )
    return states


def _floats(states: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if states.dtype in {np.dtype(np.int16), np.dtype(np.uint16)}:
        return np.ascontiguousarray(states).view(native_dtype("bfloat16"))
    return states

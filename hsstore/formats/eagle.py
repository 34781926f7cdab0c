"""The files of EAGLE-1 and EAGLE-2: one `.ckpt` a sample, with the final state only.

======================  ==========  ====================================
`input_ids`             [T]         int64
`hidden_state`          [T, H]      float16: the FINAL state, after the norm
`loss_mask`             [T]         int64
======================  ==========  ====================================

A rerun of their generator numbers its files from the end of the directory: samples may be there twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hsstore.errors import InputError
from hsstore.formats.sample import ForeignSample, ForeignTokens, take_matrix, take_row

if TYPE_CHECKING:
    from hsstore.formats.sample import Content, Hints


class Eagle:
    """See the module."""

    name: Final = "eagle"

    def path(self, row: int, sample_id: str) -> str:  # noqa: ARG002  # of the protocol
        """Return `0/data_ROW.ckpt`: as if one GPU had made them."""
        return f"0/data_{row}.ckpt"

    def write_sample(self, sample: ForeignSample) -> Content:
        """Return the values of a file. float16 has more digits than bfloat16, and a smaller range.

        Raises
        ------
        InputError
            A finite state is too large for float16.
        """
        sample.require_final("post-norm", "EAGLE's")
        last = sample.last
        with np.errstate(over="ignore"):
            half = last.astype(np.float16)
        if (lost := np.isinf(half) & np.isfinite(last.astype(np.float32))).any():
            row = int(np.flatnonzero(lost.any(axis=1))[0])
            raise InputError(
                f"row {row} holds a state beyond 65,504, too large for EAGLE's float16"
            )
        mask = np.ones(len(sample.input_ids)) if sample.loss_mask is None else sample.loss_mask
        return {
            "input_ids": sample.input_ids.astype(np.int64),
            "hidden_state": half,
            "loss_mask": mask.astype(np.int64),
        }

    def read_tokens(self, content: Content) -> ForeignTokens:
        """Return tokens and mask of a file."""
        ids = take_row(content, "input_ids", np.int32)
        return ForeignTokens(ids, take_row(content, "loss_mask", np.uint8))

    def read_sample(self, content: Content, hints: Hints) -> ForeignSample:
        """Return the sample of a file: one slot, the final state."""
        if hints.slots != 1:
            raise InputError(
                f"EAGLE's files hold the final state alone, and {hints.slots - 1} captured layers are expected"
            )
        if "aux_hidden_state" in content:
            raise InputError(
                "it has 'aux_hidden_state', as SpecForge's files do and EAGLE's do not"
            )
        tokens = self.read_tokens(content)
        last = take_matrix(content, "hidden_state", len(tokens.input_ids))
        return ForeignSample(tokens.input_ids, tokens.loss_mask, last[:, None], "post-norm")

"""SpecForge's offline files, `specforge_hidden_states_v1`.

======================  ==================  =========================================
`input_ids`             int64 [T]
`loss_mask`             int64 [T]           of the token itself; SpecForge does not shift it
`hidden_state`          [1, T, H]           the FINAL state, after the norm
`aux_hidden_state`      [1, T, layers * H]  the captured layers
======================  ==================  =========================================

In a batch the names swap: `hidden_state` is what was `aux_hidden_state`, and the final state is `target`.
Files are read in the order of their paths as strings, so numbers are padded here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hsstore.formats.sample import ForeignSample, ForeignTokens, join, take_matrix, take_row

if TYPE_CHECKING:
    from hsstore.formats.sample import Content, Hints

GROUP_ROWS = 2000
"""Files of one directory."""


class SpecForge:
    """See the module."""

    name: Final = "specforge"

    def path(self, row: int, sample_id: str) -> str:  # noqa: ARG002  # of the protocol
        """Return `rows_A-B/data_N.ckpt`; groups come in the order of their paths as well."""
        group = row // GROUP_ROWS * GROUP_ROWS
        return f"rows_{group:09d}-{group + GROUP_ROWS:09d}/data_{row:09d}.ckpt"

    def write_sample(self, sample: ForeignSample) -> Content:
        """Return the four tensors of a file."""
        sample.require_final("post-norm", "SpecForge's")
        mask = np.ones(len(sample.input_ids)) if sample.loss_mask is None else sample.loss_mask
        return {
            "input_ids": sample.input_ids.astype(np.int64),
            "loss_mask": mask.astype(np.int64),
            "hidden_state": sample.last[None],
            "aux_hidden_state": sample.aux[None],
        }

    def read_tokens(self, content: Content) -> ForeignTokens:
        """Return tokens and mask of a file."""
        ids = take_row(content, "input_ids", np.int32)
        return ForeignTokens(ids, take_row(content, "loss_mask", np.uint8))

    def read_sample(self, content: Content, hints: Hints) -> ForeignSample:
        """Return the sample of a file."""
        tokens = self.read_tokens(content)
        last = take_matrix(content, "hidden_state", len(tokens.input_ids))
        aux = take_matrix(content, "aux_hidden_state", len(tokens.input_ids))
        states = join(aux, last, hints)
        return ForeignSample(tokens.input_ids, tokens.loss_mask, states, "post-norm")

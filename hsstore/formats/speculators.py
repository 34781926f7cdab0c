"""The files of states of speculators and of vLLM's connector, one safetensors file a row.

======================  ======================  ====================================
`hidden_states`         [T, layers + 1, H]      the captured layers, then the FINAL state, BEFORE the norm
`token_ids`             int64 [T]               must equal the row of the data set
======================  ======================  ====================================

Loss masks are in the Arrow data set beside them. The trainer applies the norm itself: a state after the
norm would silently be normalised twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hsstore.errors import InputError
from hsstore.formats.sample import ForeignSample, ForeignTokens, take, take_row

if TYPE_CHECKING:
    from hsstore.formats.sample import Content, Hints


class Speculators:
    """See the module."""

    name: Final = "speculators"

    def path(self, row: int, sample_id: str) -> str:  # noqa: ARG002  # of the protocol
        """Return `hidden_states/hs_ROW.safetensors`: looked up by number, never listed."""
        return f"hidden_states/hs_{row}.safetensors"

    def write_sample(self, sample: ForeignSample) -> Content:
        """Return the two tensors of a file."""
        sample.require_final("pre-norm", "speculators'")
        return {
            "hidden_states": np.ascontiguousarray(sample.states),
            "token_ids": sample.input_ids.astype(np.int64),
        }

    def read_tokens(self, content: Content) -> ForeignTokens:
        """Return the tokens of a file."""
        return ForeignTokens(take_row(content, "token_ids", np.int32))

    def read_sample(self, content: Content, hints: Hints) -> ForeignSample:
        """Return the sample of a file."""
        ids = self.read_tokens(content).input_ids
        states = np.asarray(take(content, "hidden_states"))
        if states.ndim != 3 or states.shape[:2] != (len(ids), hints.slots):
            raise InputError(
                f"'hidden_states' has shape {states.shape}, expected ({len(ids)}, {hints.slots}, hidden)"
            )
        return ForeignSample(ids, None, states, "pre-norm")

"""Model-Optimizer's offline files, one `.pt` a conversation.

=========================  ==================  ====================================
`input_ids`, `loss_mask`   int64 [T]           the mask is ignored unless `answer_only_loss` is set
`hidden_states`            [T, H]              the FINAL state
`aux_hidden_states`        [T, layers * H]     the captured layers
`conversation_id`          str
`hidden_states_prenorm`    bool                whether the final state is before the norm; absent: after
=========================  ==================  ====================================

Their vLLM writer saves states before the norm without saying so: an import is told by `Hints.final`. Files of
one directory must agree on `hidden_states_prenorm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hsstore.errors import InputError
from hsstore.formats.sample import ForeignSample, ForeignTokens, join, take_matrix, take_row

if TYPE_CHECKING:
    from hsstore.formats.sample import Content, Hints
    from hsstore.spec import FinalState

PRENORM: Final = "hidden_states_prenorm"


class ModelOpt:
    """See the module."""

    name: Final = "modelopt"

    def path(self, row: int, sample_id: str) -> str:  # noqa: ARG002  # of the protocol
        """Return `samples/ROW.pt`: ids may hold any character, and the id itself is in the file.

        A folder of their own: the trainer takes every `.pt` below the one that it is given.
        """
        return f"samples/{row:09d}.pt"

    def write_sample(self, sample: ForeignSample) -> Content:
        """Return the values of a file."""
        if sample.final == "none":
            raise InputError("Model-Optimizer's files need the final state")
        mask = np.ones(len(sample.input_ids)) if sample.loss_mask is None else sample.loss_mask
        return {
            "input_ids": sample.input_ids.astype(np.int64),
            "hidden_states": sample.last,
            "aux_hidden_states": sample.aux,
            "loss_mask": mask.astype(np.int64),
            "conversation_id": sample.sample_id,
            PRENORM: sample.final == "pre-norm",
        }

    def read_tokens(self, content: Content) -> ForeignTokens:
        """Return tokens, mask and id of a file; TensorRT-LLM's writer leaves the mask out."""
        ids = take_row(content, "input_ids", np.int32)
        mask = take_row(content, "loss_mask", np.uint8) if "loss_mask" in content else None
        return ForeignTokens(ids, mask, str(content.get("conversation_id", "")))

    def read_sample(self, content: Content, hints: Hints) -> ForeignSample:
        """Return the sample of a file."""
        tokens = self.read_tokens(content)
        last = take_matrix(content, "hidden_states", len(tokens.input_ids))
        aux = take_matrix(content, "aux_hidden_states", len(tokens.input_ids))
        final: FinalState = hints.final
        if PRENORM in content:
            final = "pre-norm" if bool(content[PRENORM]) else "post-norm"
        states = join(aux, last, hints)
        return ForeignSample(tokens.input_ids, tokens.loss_mask, states, final, tokens.sample_id)

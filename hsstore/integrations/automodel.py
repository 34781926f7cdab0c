"""NeMo Automodel trains from a store: a data set with the keys of its `CachedEagle3Dataset`.

Its cache on disk holds the target's probabilities over the draft vocabulary, several times what the states
take; here they are computed from the final states when a sample is read. Automodel itself is not needed for
it. Tested with nemo-automodel 0.7.0.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import pad
from torch.utils.data import Dataset
from typing_extensions import override

from hsstore.errors import InputError
from hsstore.integrations.samples import ExportedSamples
from hsstore.loaders import draft_vocabulary
from hsstore.loaders.tensors import check_dtype
from hsstore.semantic.head import Head, read_head

if TYPE_CHECKING:
    from hsstore.location import Location

ROWS_AT_ONCE = 256
"""Of logits over the target's whole vocabulary."""
FORMAT = "specforge"
"""Its files hold what is needed here: the captured layers, and the final state after the norm."""


class AutomodelDataset(Dataset[dict[str, torch.Tensor]]):
    """The complete samples of a store, in dataset order, shifted and padded as Automodel has them.

    Row t holds the captured layers at token t, and everything else of token t+1. It can be pickled.

    Parameters
    ----------
    model : Path
        The target's folder: its output matrix is read, whose product with the final states, in float32, are
        the logits.
    draft_vocabulary : int
        Tokens of the draft model; see `hsstore.loaders.draft_vocabulary`.
    seq_length : int
        Rows of every sample: longer ones are cut, shorter ones padded.
    split : str, optional
        Samples of this split alone, from which the draft vocabulary is chosen, too.
    dtype : torch.dtype
        Of states and probabilities: bfloat16, float16 or float32. Automodel computes in float32 on a CPU, in
        bfloat16 on a GPU, and does not convert.
    device : str
        Where logits are computed. With worker processes, the CPU.

    Raises
    ------
    InputError
        There is no store, split or model, no complete sample, or the numbers do not fit the model.
    RefusedError
        The model is not that of the store, or the store has no captured layers or no final state.
    """

    def __init__(
        self,
        path: str | Location,
        model: str | Path,
        *,
        draft_vocabulary: int,
        seq_length: int,
        split: str | None = None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        if seq_length < 2:
            raise InputError(
                f"seq_length is {seq_length}: a sample gives a row less than it has tokens"
            )
        self.samples = ExportedSamples.of(path, FORMAT, split=split)
        self.seq_length = seq_length
        self._model = Path(model)
        self._dtype, self._device = check_dtype(dtype), device
        self.vocabulary_size = self._head.output.shape[0]
        self.selected_token_ids = _choose(
            self.samples, draft_vocabulary, self.vocabulary_size, split
        )
        """int64 (draft vocabulary,): the tokens of the draft model, ascending."""
        self.selected_token_mask = torch.zeros(self.vocabulary_size, dtype=torch.bool)
        """bool (target vocabulary,)"""
        self.selected_token_mask[self.selected_token_ids] = True

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.samples)

    @override
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Read one sample.

        Returns
        -------
        dict
            `input_ids`, `attention_mask`, `loss_mask`, int64 (S,); `aux_hidden_states` (S, layers * H);
            `position_mask`, bool (S, 1): supervised, and the target's own choice is a token of the draft;
            `target_probs` (S, draft vocabulary).
        """
        content = self.samples.read(index)
        rows = slice(self.seq_length)
        ids, mask = content["input_ids"][rows], content["loss_mask"][rows]
        loss_mask = self._padded(mask[1:])
        probabilities, chosen = self._targets(content["hidden_state"][0, rows])
        return {
            "input_ids": self._padded(ids[1:]),
            "attention_mask": self._padded(torch.ones_like(ids)),
            "loss_mask": loss_mask,
            "aux_hidden_states": self._padded(content["aux_hidden_state"][0, rows].to(self._dtype)),
            "position_mask": (chosen & loss_mask.bool())[:, None],
            "target_probs": probabilities.to(self._dtype),
        }

    def target_embeddings(self) -> torch.Tensor:
        """Read the target's embedding, float32 (target vocabulary, H), from which the draft starts."""
        return torch.from_numpy(self._head.embedding.rows(slice(None)))

    def _targets(self, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the distribution over the draft vocabulary that each row has to predict.

        Returns
        -------
        probabilities : float32 (S, draft vocabulary)
        chosen : bool (S,)
            Whether the most likely token of all is one of them.
        """
        logits = torch.zeros(len(last), len(self.selected_token_ids))
        chosen = torch.zeros(len(last), dtype=torch.bool)
        for start in range(0, len(last), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            whole = last[part].to(self._device, torch.float32) @ self._output.T
            chosen[part] = self.selected_token_mask[whole.argmax(-1).cpu()]
            logits[part] = whole[:, self.selected_token_ids.to(self._device)].cpu()
        return torch.softmax(self._padded(logits[1:]), dim=-1), self._padded(chosen[1:])

    def _padded(self, values: torch.Tensor) -> torch.Tensor:
        """Fill up with zeros to (S, ...)."""
        missing = self.seq_length - len(values)
        return pad(values, (0, 0) * (values.ndim - 1) + (0, missing))

    @cached_property
    def _head(self) -> Head:
        store = self.samples.open()
        weight = np.asarray(store.plan_array("norm_weight"))
        return read_head(self._model, store.spec.model, weight)

    @cached_property
    def _output(self) -> torch.Tensor:
        """The output matrix, float32 (target vocabulary, H)."""
        return torch.from_numpy(self._head.output.rows(slice(None))).to(self._device)

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Pickle what to read, not what was read."""
        return {
            name: value for name, value in vars(self).items() if name not in {"_head", "_output"}
        }


def _choose(
    samples: ExportedSamples, size: int, vocabulary: int, split: str | None
) -> torch.Tensor:
    offsets, _ = draft_vocabulary(samples.open(), size, vocabulary, split=split)
    return offsets + torch.arange(size)

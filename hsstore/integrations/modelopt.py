"""ModelOpt (nvidia-modelopt) trains from a store: a data set with the keys of its `OfflineSupervisedDataset`.

ModelOpt itself is not needed for it; its `EagleOfflineDataCollator` takes what it gives. Tested with
nvidia-modelopt 0.47.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset
from typing_extensions import override

from hsstore.formats.modelopt import PRENORM
from hsstore.integrations.samples import ExportedSamples

if TYPE_CHECKING:
    from hsstore.location import Location

IGNORED = -100
"""Label of a row without one."""


class ModelOptDataset(Dataset[dict[str, Any]]):
    """The complete samples of a store, in dataset order; it can be pickled.

    Parameters
    ----------
    split : str, optional
        Samples of this split alone.
    answer_only_loss : bool
        Take the loss mask of the store. ModelOpt's own default is to train on every token.

    Raises
    ------
    InputError
        There is no store, no such split, or no complete sample.
    RefusedError
        The store has no captured layers, or no final state.
    """

    def __init__(
        self, path: str | Location, *, split: str | None = None, answer_only_loss: bool = True
    ) -> None:
        self.samples = ExportedSamples.of(path, "modelopt", split=split)
        self._answer_only_loss = answer_only_loss

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.samples)

    @override
    def __getitem__(self, index: int) -> dict[str, Any]:
        """Read one sample.

        Returns
        -------
        dict
            `input_ids`, `attention_mask`, `loss_mask` and `labels`, int64 (T,): the label of a row is the
            next token; `base_model_hidden_states` (T, H), the final state; `aux_hidden_states`
            (T, layers * H); `base_hidden_prenorm`, whether that final state is before the norm.
        """
        content = self.samples.read(index)
        ids = content["input_ids"]
        labels = torch.full_like(ids, IGNORED)
        labels[:-1] = ids[1:]
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "loss_mask": content["loss_mask"] if self._answer_only_loss else torch.ones_like(ids),
            "labels": labels,
            "base_model_hidden_states": content["hidden_states"],
            "aux_hidden_states": content["aux_hidden_states"],
            "base_hidden_prenorm": content[PRENORM],
        }

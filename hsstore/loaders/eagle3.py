"""EAGLE-3 training data: unshifted samples, and batches shifted by one.

Shapes: B samples, T tokens, L = longest T - 1 rows, A captured layers, H hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from typing_extensions import override

from hsstore.errors import InputError
from hsstore.loaders.tensors import read_states
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt


class Eagle3Sample(TypedDict):
    """One sample, unshifted: row t holds token t and the states at token t."""

    input_ids: torch.Tensor
    """int64 [T]"""
    loss_mask: torch.Tensor
    """int64 [T]: 1 where the token itself is supervised."""
    aux_states: torch.Tensor
    """[T, A*H], in the store's dtype: the captured layers, ascending, side by side."""
    final_state: torch.Tensor
    """[T, H], in the store's dtype; after or before the final norm as `spec.model.final` says."""


class Eagle3Batch(TypedDict):
    """Samples shifted by one and padded on the right; see `eagle3_collate`."""

    input_ids: torch.Tensor
    """int64 [B, L]: token t+1."""
    aux_states: torch.Tensor
    """[B, L, A*H]: states at token t."""
    target_states: torch.Tensor
    """[B, L, H]: final state at token t+1."""
    loss_mask: torch.Tensor
    """int64 [B, L]: whether token t+1 is supervised; 0 in padding."""
    attention_mask: torch.Tensor
    """int64 [B, L]: 0 in padding."""
    position_ids: torch.Tensor
    """int64 [B, L]: t; 0 in padding."""


class Eagle3Dataset(Dataset[Eagle3Sample]):
    """The complete samples of a store, in dataset order, as a torch map-style dataset.

    Which samples are complete is looked up once, when it is made. It can be pickled, so it works
    in the worker processes of a `DataLoader`.

    Parameters
    ----------
    split : str, optional
        Samples of this split alone.

    Raises
    ------
    InputError
        There is no store, no such split, or the store has no final state.
    """

    def __init__(self, path: str | Path, split: str | None = None) -> None:
        self.store = Store.open(path)
        if self.store.spec.model.final == "none" or not self.store.spec.model.layers:
            raise InputError(f"{path}: EAGLE-3 needs captured layers and the final state")
        wanted = self.store.completion().complete
        if split is not None:
            wanted &= self.store.plan_array("split") == self._split_number(split)
        self.samples = np.flatnonzero(wanted)
        """int64 (len(self),): indices of the samples in the store."""

    def _split_number(self, split: str) -> int:
        names = self.store.spec.dataset.split_names
        if split not in names:
            raise InputError(f"{self.store.path}: no split {split!r}; there are {list(names)}")
        return names.index(split)

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.samples)

    @override
    def __getitem__(self, index: int) -> Eagle3Sample:
        """Read one sample; its states are views of one buffer, nothing is copied."""
        sample = int(self.samples[index])
        states = read_states(self.store, sample, contiguous=True)
        return {
            "input_ids": torch.from_numpy(self.store.input_ids(sample).astype(np.int64)),
            "loss_mask": torch.from_numpy(self.store.loss_mask(sample).astype(np.int64)),
            "aux_states": states[:, :-1].flatten(1),
            "final_state": states[:, -1],
        }

    @override
    def __getstate__(self) -> tuple[Path, npt.NDArray[np.int64]]:
        """Pickle what to open, not what is open."""
        return self.store.path, self.samples

    def __setstate__(self, state: tuple[Path, npt.NDArray[np.int64]]) -> None:
        """Open the store anew, with the same samples."""
        path, self.samples = state
        self.store = Store.open(path)


def eagle3_collate(samples: Sequence[Eagle3Sample]) -> Eagle3Batch:
    """Align samples for EAGLE-3 and pad them on the right with zeros.

    A draft model, in row t, is given the target's states at token t and the token that the target
    chose next, t+1; it has to predict what the target predicts from there, token t+2. So the
    auxiliary states stay where they are, and everything else moves left by one: the token, the
    target's final state at that token (whose logits are the distribution over token t+2), and the
    token's loss mask. A sample of T tokens gives T-1 rows: token 0 is never drafted from nothing,
    and the auxiliary states at the last token have no token to go with.

    For the tokens ``a b c d e``, of which ``c d e`` are the assistant's::

        row t                            0      1      2      3
        aux_states        states at      a      b      c      d
        input_ids         token          b      c      d      e
        target_states     final at       b      c      d      e
          so predicts     token          c      d      e      (what follows e)
        loss_mask         of token       0(b)   1(c)   1(d)   1(e)
        position_ids                     0      1      2      3

    The first supervised row is the first that is drafted when the model is served: the target has
    given ``c``, the draft continues. This is the alignment of speculators, and of SpecForge but for
    its loss mask, which SpecForge does not shift.

    Returns
    -------
    Eagle3Batch
    """
    rows = [len(sample["input_ids"]) - 1 for sample in samples]
    positions = [torch.arange(count) for count in rows]
    return {
        "input_ids": _pad([sample["input_ids"][1:] for sample in samples]),
        "aux_states": _pad([sample["aux_states"][:-1] for sample in samples]),
        "target_states": _pad([sample["final_state"][1:] for sample in samples]),
        "loss_mask": _pad([sample["loss_mask"][1:] for sample in samples]),
        "attention_mask": _pad([torch.ones(count, dtype=torch.int64) for count in rows]),
        "position_ids": _pad(positions),
    }


def _pad(tensors: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(tensors, batch_first=True)

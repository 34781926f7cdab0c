"""EAGLE-3 training data as a map-style dataset: unshifted samples, and their collation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from torch.utils.data import Dataset
from typing_extensions import override

from hsstore.errors import InputError
from hsstore.loaders.alignment import Widths, assemble
from hsstore.loaders.selection import aux_slots, completeness
from hsstore.loaders.tensors import check_dtype, read_states
from hsstore.store import Store
from hsstore.subset import of_split

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hsstore.loaders.alignment import Eagle3Batch
    from hsstore.location import Location


class Eagle3Sample(TypedDict):
    """One sample, unshifted: row t holds token t and the states at token t."""

    sample: int
    """Its index in the store."""
    input_ids: torch.Tensor
    """int64 [T]"""
    loss_mask: torch.Tensor
    """int64 [T]: 1 where the token itself is supervised."""
    aux_states: torch.Tensor
    """[T, A*H], in the store's dtype: the captured layers, ascending, side by side."""
    final_state: torch.Tensor
    """[T, H], in the store's dtype; after or before the final norm as `spec.model.final` says."""


class Eagle3Dataset(Dataset[Eagle3Sample]):
    """The complete samples of a store, in dataset order, as a torch map-style dataset.

    Which samples are complete is looked up once, when it is made. It can be pickled, so it works
    in the worker processes of a `DataLoader`.

    Parameters
    ----------
    split : str, optional
        Samples of this split alone.
    layers : ints, optional
        The captured layers that are read, in this order; all if it is left out.

    Raises
    ------
    InputError
        There is no store, no such split or layer, or the store has no final state.
    """

    def __init__(
        self, path: str | Location, split: str | None = None, *, layers: Sequence[int] | None = None
    ) -> None:
        self.store = Store.open(path)
        self._slots = [*aux_slots(self.store, layers), self.store.spec.model.slots - 1]
        complete, _ = completeness(self.store)
        self.samples = np.flatnonzero(complete & of_split(self.store, split))
        """int64 (len(self),): indices of the samples in the store."""

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.samples)

    @override
    def __getitem__(self, index: int) -> Eagle3Sample:
        """Read one sample; its states are views of one buffer, nothing is copied."""
        sample = int(self.samples[index])
        states = read_states(self.store, sample, slots=self._slots, contiguous=True)
        return {
            "sample": sample,
            "input_ids": torch.from_numpy(self.store.input_ids(sample).astype(np.int64)),
            "loss_mask": torch.from_numpy(self.store.loss_mask(sample).astype(np.int64)),
            "aux_states": states[:, :-1].flatten(1),
            "final_state": states[:, -1],
        }

    @override
    def __getstate__(self) -> tuple[Location, list[int], npt.NDArray[np.int64]]:
        """Pickle what to open, not what is open."""
        return self.store.location, self._slots, self.samples

    def __setstate__(self, state: tuple[Location, list[int], npt.NDArray[np.int64]]) -> None:
        """Open the store anew, with the same samples."""
        path, self._slots, self.samples = state
        self.store = Store.open(path)


@dataclass(frozen=True, slots=True)
class _InMemory:
    """A sample that was read before."""

    item: Eagle3Sample
    rows: int

    @property
    def sample(self) -> int:
        return self.item["sample"]

    def tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.item["input_ids"], self.item["loss_mask"]

    def fill(self, aux: torch.Tensor, target: torch.Tensor) -> None:
        aux.copy_(self.item["aux_states"][: self.rows])
        target.copy_(self.item["final_state"][1 : self.rows + 1])


def eagle3_collate(
    samples: Sequence[Eagle3Sample],
    *,
    max_length: int | None = None,
    pack_rows: int | None = None,
    dtype: torch.dtype | None = None,
) -> Eagle3Batch:
    """Align samples for EAGLE-3, and pad them on the right with zeros, or pack them.

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

    Packed with ``x y z`` into 8 rows, it is one line::

        aux_states        states at      a  b  c  d  x  y  -  -
        input_ids         token          b  c  d  e  y  z  0  0
        position_ids                     0  1  2  3  0  1  0  0
        document_ids                     0  0  0  0  1  1 -1 -1

    Parameters
    ----------
    max_length : int, optional
        Longer samples are cut to so many tokens first.
    pack_rows : int, optional
        Put all samples into one line of so many rows, instead of each into a line of its own.
    dtype : torch.dtype, optional
        Of the states in the batch, bfloat16, float16 or float32; otherwise that of the first sample.

    Returns
    -------
    Eagle3Batch

    Raises
    ------
    ValueError
        There is no sample, or they do not fit into `pack_rows`.
    InputError
        Samples cannot have this `max_length` or `dtype`.
    """
    if not samples:
        raise ValueError("there is no sample to make a batch of")
    if max_length is not None and max_length < 2:
        raise InputError(f"max_length is {max_length}; it must be at least 2")
    sources = [
        _InMemory(item, min(len(item["input_ids"]), max_length or 2**62) - 1) for item in samples
    ]
    aux, final = samples[0]["aux_states"], samples[0]["final_state"]
    wanted = check_dtype(aux.dtype if dtype is None else dtype)
    widths = Widths(aux.shape[1], final.shape[1], wanted)
    return assemble(sources, widths, pack_rows)

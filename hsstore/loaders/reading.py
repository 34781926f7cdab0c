"""Read a batch from a store, in whichever process: what the loaders send to those that read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from hsstore.errors import InputError
from hsstore.loaders.alignment import Widths, assemble
from hsstore.loaders.tensors import bits_of, read_states, torch_dtype
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hsstore.loaders.alignment import Eagle3Batch
    from hsstore.loaders.order import Cutting
    from hsstore.location import Location

OPEN_STORES = 8


@dataclass(frozen=True, slots=True)
class BatchReader:
    """Reads batches of one store; small, and can be pickled."""

    path: Location
    store_id: str
    """Its UUID: another process may find another store under this path."""
    slots: tuple[int, ...]
    """Of the captured layers that are read."""
    dtype: torch.dtype
    """Of the batch; states of another dtype are converted."""
    cutting: Cutting

    def open(self) -> Store:
        """Open the store, once a process."""
        return open_once(self.path, self.store_id, os.getpid())

    @property
    def widths(self) -> Widths:
        """What a row of states holds."""
        hidden = self.open().spec.model.hidden
        return Widths(len(self.slots) * hidden, hidden, self.dtype)

    def read(self, samples: Sequence[int]) -> Eagle3Batch:
        """Read the batch of some samples, at least one.

        Raises
        ------
        NotExtractedError
            A sample is not complete any more.
        CorruptStoreError
            Its payload, or its part of the plan, does not pass the crc.
        """
        store = self.open()
        tokens = [store.index.length[sample] for sample in samples]
        rows = self.cutting.rows(torch.tensor(tokens).numpy()).tolist()
        sources = [
            StoreSource(store, sample, count, self.slots)
            for sample, count in zip(samples, rows, strict=True)
        ]
        return assemble(sources, self.widths, self.cutting.pack_rows)


@dataclass(frozen=True, slots=True)
class StoreSource:
    """A sample that is decoded straight into the batch."""

    store: Store
    sample: int
    rows: int
    slots: Sequence[int]

    def tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids and loss mask."""
        ids, mask = self.store.input_ids(self.sample), self.store.loss_mask(self.sample)
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def fill(self, aux: torch.Tensor, target: torch.Tensor) -> None:
        """Put the captured layers of the first rows, and the final states one row later."""
        final = self.store.spec.model.slots - 1
        if self._is_direct(aux.dtype):
            self.store.require_complete(self.sample)
            parts = [
                (0, self.slots, bits_of(aux.view(self.rows, len(self.slots), -1))),
                (1, [final], bits_of(target.unsqueeze(1))),
            ]
            self.store.payload.read_parts(self.sample, parts)
            return
        rows, slots = slice(0, self.rows + 1), [*self.slots, final]
        states = read_states(self.store, self.sample, rows=rows, slots=slots, contiguous=True)
        aux.copy_(states[:-1, :-1].flatten(1))
        target.copy_(states[1:, -1])

    def _is_direct(self, dtype: torch.dtype) -> bool:
        """Say whether no chunk holds both what stays and what moves: each is then decoded once."""
        one_slot = self.store.spec.geometry.chunk_slots == 1
        return one_slot and dtype == torch_dtype(self.store)


def close_stores() -> None:
    """Close the stores that streams have opened in this process: their files stay open otherwise."""
    open_once.cache_clear()


@lru_cache(maxsize=OPEN_STORES)
def open_once(path: Location, store_id: str, process: int) -> Store:
    """Open a store; `process` is here because what a fork leaves of an open one is not to be used."""
    store = Store.open(path)
    if store.spec.store != store_id:
        raise InputError(
            f"{path}, as process {process} sees it, is not the store that the loader was made for: "
            f"{store.spec.store} instead of {store_id}"
        )
    return store

"""How samples become an EAGLE-3 batch: the shift by one, and padding or packing.

Shapes: B lines, L rows of a line, D documents (samples), A captured layers, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypedDict

import torch

from hsstore.loaders.memory import empty

if TYPE_CHECKING:
    from collections.abc import Sequence


class Eagle3Batch(TypedDict):
    """Samples shifted by one, padded or packed; see `eagle3_collate`."""

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
    """int64 [B, L]: t, from 0 in each document; 0 in padding."""
    document_ids: torch.Tensor
    """int64 [B, L]: which document a row is of, 0 to D-1; -1 in padding. Packed documents must not attend
    to each other."""
    samples: torch.Tensor
    """int64 [D]: the index in the store of each document."""


class Source(Protocol):
    """One sample, wherever it comes from."""

    @property
    def sample(self) -> int:
        """Its index in the store."""
        ...

    @property
    def rows(self) -> int:
        """Rows that it gives: its tokens, cut to the maximal length, less one."""
        ...

    def tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids and loss mask, both [at least rows + 1], any integers."""
        ...

    def fill(self, aux: torch.Tensor, target: torch.Tensor) -> None:
        """Put the captured layers of the first rows, and the final states one row later.

        Parameters
        ----------
        aux : tensor [rows, A*H]
        target : tensor [rows, H]
        """
        ...


@dataclass(frozen=True, slots=True)
class Widths:
    """What a row of states holds."""

    aux: int
    """A*H."""
    final: int
    """H."""
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a batch: states, and five numbers."""
        return (self.aux + self.final) * self.dtype.itemsize + 5 * 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document goes."""

    line: int
    rows: slice


def place(rows: Sequence[int], pack_rows: int | None) -> tuple[list[Place], tuple[int, int]]:
    """Place documents of so many rows: each in a line of its own, or all in one.

    Returns
    -------
    places : list of Place
    shape : int, int
        Lines, and rows of each.
    """
    if pack_rows is None:
        return [Place(line, slice(0, n)) for line, n in enumerate(rows)], (len(rows), max(rows))
    places, start = [], 0
    for count in rows:
        places.append(Place(0, slice(start, start + count)))
        start += count
    if start > pack_rows:
        raise ValueError(f"{start} rows do not fit into a line of {pack_rows}")
    return places, (1, pack_rows)


def assemble(sources: Sequence[Source], widths: Widths, pack_rows: int | None) -> Eagle3Batch:
    """Make the batch of some samples, at least one."""
    places, shape = place([source.rows for source in sources], pack_rows)
    batch: Eagle3Batch = {
        "input_ids": torch.zeros(shape, dtype=torch.int64),
        "aux_states": empty((*shape, widths.aux), widths.dtype),
        "target_states": empty((*shape, widths.final), widths.dtype),
        "loss_mask": torch.zeros(shape, dtype=torch.int64),
        "attention_mask": torch.zeros(shape, dtype=torch.int64),
        "position_ids": torch.zeros(shape, dtype=torch.int64),
        "document_ids": torch.full(shape, -1, dtype=torch.int64),
        "samples": torch.tensor([source.sample for source in sources]),
    }
    used = [0] * shape[0]
    for document, (source, where) in enumerate(zip(sources, places, strict=True)):
        _put(batch, document, source, where)
        used[where.line] = where.rows.stop
    for line, end in enumerate(used):
        batch["aux_states"][line, end:] = 0
        batch["target_states"][line, end:] = 0
    return batch


def _put(batch: Eagle3Batch, document: int, source: Source, where: Place) -> None:
    here = (where.line, where.rows)
    shifted = slice(1, source.rows + 1)
    ids, mask = source.tokens()
    batch["input_ids"][here] = ids[shifted]
    batch["loss_mask"][here] = mask[shifted]
    batch["attention_mask"][here] = 1
    batch["position_ids"][here] = torch.arange(source.rows)
    batch["document_ids"][here] = document
    source.fill(batch["aux_states"][here], batch["target_states"][here])

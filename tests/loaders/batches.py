"""Batches built token by token, as their definition says, and how to compare them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from hsstore.loaders import Eagle3Dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hsstore.loaders import Eagle3Batch, Eagle3Sample
    from hsstore.store import Store

Row = tuple[int, int, int, int, int, list[float], list[float]]


def rows_of(document: int, sample: Eagle3Sample, max_length: int | None) -> list[Row]:
    """Build the rows of one sample: token, mask, attention, position, document, aux, target."""
    tokens = sample["input_ids"].tolist()[:max_length]
    return [
        (
            tokens[t + 1],
            int(sample["loss_mask"][t + 1]),
            1,
            t,
            document,
            raw(sample["aux_states"][t]),
            raw(sample["final_state"][t + 1]),
        )
        for t in range(len(tokens) - 1)
    ]


def brute_force(
    samples: Sequence[Eagle3Sample], max_length: int | None, pack_rows: int | None
) -> list[list[Row]]:
    """Build the lines of a batch, padding included."""
    documents = [rows_of(number, one, max_length) for number, one in enumerate(samples)]
    lines = [list(chain.from_iterable(documents))] if pack_rows else documents
    length = pack_rows or max(map(len, lines))
    widths = samples[0]["aux_states"].shape[1], samples[0]["final_state"].shape[1]
    empty: Row = (0, 0, 0, 0, -1, [0.0] * widths[0], [0.0] * widths[1])
    return [line + [empty] * (length - len(line)) for line in lines]


def lines_of(batch: Eagle3Batch) -> list[list[Row]]:
    """Return the rows of a batch in the same form."""
    shape = batch["input_ids"].shape
    return [[_row(batch, line, t) for t in range(shape[1])] for line in range(shape[0])]


def _row(batch: Eagle3Batch, line: int, t: int) -> Row:
    names = ("input_ids", "loss_mask", "attention_mask", "position_ids", "document_ids")
    tensors: dict[str, Any] = dict(batch)
    numbers = [int(tensors[name][line, t]) for name in names]
    states = [raw(tensors[name][line, t]) for name in ("aux_states", "target_states")]
    return (*numbers, *states)  # type: ignore[return-value]  # seven


def raw(states: torch.Tensor) -> list[Any]:
    """Return bits: NaNs are equal to themselves then."""
    bits: list[Any] = states.view({2: torch.int16, 4: torch.int32}[states.dtype.itemsize]).tolist()
    return bits


def samples_of(store: Store, numbers: Sequence[int]) -> list[Eagle3Sample]:
    """Read samples of a full store through the map-style dataset."""
    dataset = Eagle3Dataset(store.path)
    return [dataset[number] for number in numbers]


def assert_equal(batch: Eagle3Batch, other: Eagle3Batch) -> None:
    """Compare two batches tensor by tensor, bit by bit."""
    assert batch.keys() == other.keys()
    for name, tensor in batch.items():
        assert isinstance(tensor, torch.Tensor)
        theirs: torch.Tensor = dict(other)[name]  # type: ignore[assignment]
        assert tensor.dtype == theirs.dtype, name
        assert tensor.shape == theirs.shape, name
        if tensor.is_floating_point():
            assert raw(tensor) == raw(theirs), name
        else:
            assert torch.equal(tensor, theirs), name


def served(batches: Sequence[Eagle3Batch]) -> list[int]:
    """Return the samples of batches, in their order."""
    return [sample for batch in batches for sample in batch["samples"].tolist()]

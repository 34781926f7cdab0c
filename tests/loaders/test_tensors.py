"""States as tensors: whose memory they are in, and that nothing is lost on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from hsstore.loaders import read_states
from hsstore.testing.stores import fill_store, make_model, make_store, payload

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.dtype import DTypeName
    from hsstore.store import Store

BITS = {2: torch.uint16, 4: torch.uint32}


@pytest.fixture(params=["bfloat16", "float16", "float32"])
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Give a full store whose chunks hold one slot."""
    dtype: DTypeName = request.param
    made = make_store(tmp_path / "s.zarr", [9, 5], model=make_model(dtype, hidden=2048))
    fill_store(made)
    return made


def assert_bits(store: Store, states: torch.Tensor, sample: int) -> None:
    bits = states.view(BITS[store.bits.itemsize]).numpy()
    np.testing.assert_array_equal(bits, payload(store, sample))


def test_a_tensor_has_the_bits_of_the_store_and_its_dtype(full: Store) -> None:
    states, whole = read_states(full, 0), read_states(full, 0, contiguous=True)

    assert str(states.dtype) == f"torch.{full.spec.model.dtype}"
    assert_bits(full, states, 0)
    assert_bits(full, whole, 0)
    assert whole.is_contiguous()
    assert all(states[:, slot].is_contiguous() for slot in range(3))


def test_samples_are_decoded_straight_into_a_batch(full: Store) -> None:
    dtype = read_states(full, 0).dtype
    batch = torch.zeros((2, 9, 3, 2048), dtype=dtype)

    for sample, length in enumerate((9, 5)):
        out = batch[sample, :length]
        assert read_states(full, sample, out=out) is out

    assert_bits(full, batch[0], 0)
    assert_bits(full, batch[1, :5], 1)
    assert not batch[1, 5:].any()


def test_rows_and_slots_are_those_asked_for(full: Store) -> None:
    part = read_states(full, 0, rows=slice(-3, None), slots=[2, 0], contiguous=True)

    bits = part.view(BITS[full.bits.itemsize]).numpy()
    np.testing.assert_array_equal(bits, payload(full, 0)[-3:, [2, 0]])


def test_memory_of_another_dtype_is_refused(full: Store) -> None:
    with pytest.raises(ValueError, match=r"out is torch\.int8; the store has"):
        read_states(full, 0, out=torch.zeros((9, 3, 2048), dtype=torch.int8))

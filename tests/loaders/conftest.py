"""A small store whose states are the raw bits that follow from the sample numbers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from hsstore.create import LayoutOptions
from hsstore.testing.stores import commit_block, fill_store, make_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.store import Store

LENGTHS = (3, 6, 5, 1, 18, 2, 9)
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """Give a store in which sample 2 is pending; sample 4 is of the split `test`."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        store = make_store(Path(path) / "store.zarr", LENGTHS)
        for index in range(store.layout.blocks):
            samples = store.layout.block(index).samples
            commit_block(store, index, [sample for sample in samples if sample != 2])
        yield store


@pytest.fixture(scope="session")
def many() -> Iterator[Store]:
    """Give a full store of 50 samples in many blocks; the first two have one token."""
    lengths = [1, 1, *np.random.default_rng(0).integers(2, 40, 48).tolist()]
    options = LayoutOptions(chunk_rows=4, shard_rows=128, span_samples=20)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        store = make_store(Path(path) / "many.zarr", lengths, options=options)
        fill_store(store)
        yield store

"""A small store whose states are the raw bits that follow from the sample numbers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from hsstore.testing.stores import commit_block, make_store

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

"""A store with complete, pending and failed samples, one of them longer than a shard."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hsstore.testing.finite import make_mixed_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.store import Store


@pytest.fixture(scope="session")
def mixed() -> Iterator[Store]:
    """Give the store; not to be changed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield make_mixed_store(Path(path) / "store.zarr")


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give an empty directory in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield Path(path)

"""A small, healthy store with every kind of sample in it, and copies of it to damage."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hsstore.testing.finite import make_mixed_store

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def healthy() -> Iterator[Path]:
    """Give a store with complete, pending and failed samples. Not to be changed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield make_mixed_store(Path(path) / "store.zarr").path


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give an empty directory in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield Path(path)


@pytest.fixture
def damaged(healthy: Path, directory: Path) -> Path:
    """Give a copy of the healthy store, its files' times included, for a test to damage."""
    return Path(shutil.copytree(healthy, directory / "store.zarr"))

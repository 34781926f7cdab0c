"""A store for the commands to look at."""

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
def damaged(healthy: Path) -> Iterator[Path]:
    """Give a copy of the store in which sample 2 has lost its bit and sample 7 its digest."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        store = Path(shutil.copytree(healthy, Path(path) / "store.zarr"))
        for name, position in (("complete/c.0", 2), ("digest/c.1", 9)):
            data = bytearray((store / name).read_bytes())
            data[position] ^= 1
            (store / name).write_bytes(bytes(data))
        yield store

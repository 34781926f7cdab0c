"""Directories in memory: these tests write many small files, and fsync them all."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.export.given import Library, make_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give an empty directory in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def checkpoint() -> Iterator[Path]:
    """Give the folder of a model that has the norm of these stores. Not to be changed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield make_checkpoint(Path(path) / "model")


@pytest.fixture(scope="session")
def library() -> Iterator[Library]:
    """Give stores and exports that are made once."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield Library(Path(path))

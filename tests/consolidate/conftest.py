"""Directories in memory: these tests write many small files, and fsync them all."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give an empty directory in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as path:
        yield Path(path)

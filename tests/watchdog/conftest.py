"""A disk that can be frozen, a server that can be told what to do, and data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.extraction.tiny import write_data
from tests.faults.fake import Fake, serving
from tests.faults.lab import MIB, Fuse, LabError, ext4, fuse, room

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES = 60


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a directory in shared memory."""
    with room("hsstore-test-") as path:
        yield path


@pytest.fixture
def disk(place: Path) -> Iterator[Path]:
    """Give a file system of its own."""
    try:
        with ext4(place, 256 * MIB) as path:
            yield path
    except LabError as error:
        pytest.skip(f"no disk of its own: {error}")


@pytest.fixture
def hanging(place: Path) -> Iterator[Fuse]:
    """Give a file system on which everything can hang."""
    try:
        with fuse(place) as mounted:
            yield mounted
    except LabError as error:
        pytest.skip(f"no FUSE: {error}")


@pytest.fixture
def fake(place: Path) -> Iterator[Fake]:
    """Give a server that computes nothing and answers at once."""
    with serving(place / "spool", SAMPLES) as server:
        yield server


@pytest.fixture
def data(place: Path) -> Path:
    """Give samples of 200 tokens."""
    return write_data(place / "data.jsonl", [200] * SAMPLES)

"""A room in shared memory for each test, and what cannot be produced here is skipped by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.extraction.tiny import write_data
from tests.faults import lab
from tests.faults.fake import Fake, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

collect_ignore = ["faulty_fuse.py", "volatile.py"]
"""Programs: they need libfuse, which may be missing."""
SAMPLES, ROWS = 200, 40


@pytest.fixture
def room() -> Iterator[Path]:
    """Give a directory in shared memory."""
    with lab.room() as path:
        yield path


@pytest.fixture
def data(room: Path) -> Path:
    """Give samples of equal length."""
    return write_data(room / "data.jsonl", [ROWS] * SAMPLES)


@pytest.fixture
def server(room: Path) -> Iterator[Fake]:
    """Give a server that answers at once."""
    with serving(room / "spool", SAMPLES) as fake:
        yield fake


@pytest.fixture
def disk(room: Path) -> Iterator[Path]:
    """Give an ext4 file system of its own; frozen, it is thawed in the end."""
    try:
        with lab.ext4(room) as mount:
            yield mount
    except lab.LabError as error:
        pytest.skip(str(error))


@pytest.fixture
def fuse(room: Path) -> Iterator[lab.Fuse]:
    """Give a file system that goes wrong on demand."""
    try:
        with lab.fuse(room) as mounted:
            yield mounted
    except lab.LabError as error:
        pytest.skip(str(error))

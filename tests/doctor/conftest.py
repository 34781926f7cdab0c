"""A room in shared memory, a server that goes wrong on demand, and data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.extraction.tiny import write_data
from tests.faults import lab
from tests.faults.fake import Fake, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES, ROWS = 240, 40
"""So many that a run on a slow server lasts for minutes: until it has been looked at."""
ANSWERED, FEW = 8, ("--max-in-flight", "4")
ASKED = ANSWERED + 4
"""When a server that holds what comes later has been asked for so much, nothing moves any more."""


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a directory in shared memory."""
    with lab.room("hsstore-doctor-") as path:
        yield path


@pytest.fixture
def fake(place: Path) -> Iterator[Fake]:
    """Give a server that takes its time for each request."""
    with serving(place / "spool", SAMPLES) as server:
        server.slowly(0.3)
        yield server


def hold_later_ones(fake: Fake) -> None:
    """Let the server answer for the first samples only, until it is released."""
    fake.server.held = set(range(ANSWERED, SAMPLES))
    fake.hold()


@pytest.fixture
def data(place: Path) -> Path:
    """Give samples of equal length."""
    return write_data(place / "data.jsonl", [ROWS] * SAMPLES)

"""Rooms in shared memory, each removed with its test."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from extraction.spool import SpoolServer
from tests.spool.given import make_info

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture
def here(room: Path) -> Path:
    """Say where the mirror is to be."""
    return room / "here" / "spool"


@pytest.fixture
def server(room: Path) -> Iterator[SpoolServer]:
    """Give a server with its spool, announced."""
    with SpoolServer(room / "there" / "spool") as server:
        server.announce(make_info())
        server.beat(forwards=1, queue_depth=0)
        yield server

"""One real server for all tests here, and room in shared memory for their stores."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import extraction.contact
import extraction.fleet
from tests.extraction.processes import Server, remove_spool
from tests.extraction.tiny import make_checkpoint, make_lengths, write_data

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def room() -> Iterator[Path]:
    """Give a directory in shared memory."""
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def tiny_model(room: Path) -> Path:
    """Give a random Llama checkpoint."""
    return make_checkpoint(room / "model")


@pytest.fixture(scope="session")
def data(room: Path) -> Path:
    """Give 60 tokenised samples of 1 to 120 tokens, and one of 600, longer than a shard."""
    lengths = make_lengths(60)
    return write_data(room / "data.jsonl", [*lengths[:30], 600, *lengths[30:]])


@contextmanager
def _serving(model: Path, *arguments: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as path:
        server = Server(model, Path(path), *arguments)
        try:
            yield server.start()
        finally:
            server.kill()
            remove_spool(server)


@pytest.fixture(scope="session")
def _session_server(tiny_model: Path) -> Iterator[Server]:
    with _serving(tiny_model) as server:
        yield server.wait()


@pytest.fixture(scope="session")
def _other_session_server(room: Path) -> Iterator[Server]:
    with _serving(make_checkpoint(room / "other-model", seed=1)) as server:
        yield server.wait()


@pytest.fixture
def other_server(_other_session_server: Server) -> Server:
    """Give a second server, of another checkpoint of the same shape."""
    assert _other_session_server.alive
    return _other_session_server


@pytest.fixture
def server(_session_server: Server) -> Server:
    """Give the server of the session; whoever stops it has to let it go on."""
    assert _session_server.alive
    _session_server.clear_spool()  # of what a test that failed has left
    return _session_server


@pytest.fixture
def store(room: Path) -> Iterator[Path]:
    """Give the path of a store that is not there yet."""
    with tempfile.TemporaryDirectory(dir=room) as path:
        yield Path(path) / "store.zarr"


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at servers files often."""
    monkeypatch.setattr(extraction.fleet, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(extraction.contact, "LOOK_SECONDS", 0.1)

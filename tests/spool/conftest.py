"""Spools in shared memory, each removed with its test."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extraction.spool import ClientInfo, RequestId, ServerInfo, SpoolClient, SpoolServer
from tests.spool.given import HIDDEN, RUN, SLOTS, make_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt


@pytest.fixture
def spool_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as directory:
        yield Path(directory) / "spool"


@pytest.fixture
def info() -> ServerInfo:
    return make_info()


@pytest.fixture
def server(spool_path: Path, info: ServerInfo) -> Iterator[SpoolServer]:
    with SpoolServer(spool_path) as server:
        server.announce(info)
        yield server


@pytest.fixture
def client(server: SpoolServer) -> Iterator[SpoolClient]:
    with SpoolClient(server.directory.path, ClientInfo(RUN, "store-uuid")) as client:
        yield client


@pytest.fixture
def rid() -> RequestId:
    return RequestId(RUN, sample=5, attempt=0, rows=10)


@pytest.fixture
def states() -> Callable[[int], tuple[npt.NDArray[np.uint16], npt.NDArray[np.int32]]]:
    """Random states of `rows` tokens: every bit pattern may occur."""

    def make(rows: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int32]]:
        random = np.random.default_rng(rows)
        hidden = random.integers(0, 1 << 16, (rows, SLOTS, HIDDEN), dtype=np.uint16)
        return hidden, random.integers(0, 1 << 31, rows, dtype=np.int32)

    return make


@pytest.fixture
def capture(
    states: Callable[[int], tuple[npt.NDArray[np.uint16], npt.NDArray[np.int32]]],
) -> Callable[[SpoolServer, RequestId], npt.NDArray[np.uint16]]:
    """Let a server capture a whole request; returns what the dump must hold."""

    def make(server: SpoolServer, rid: RequestId) -> npt.NDArray[np.uint16]:
        hidden, input_ids = states(rid.rows)
        server.put(str(rid), 0, hidden, input_ids)
        return hidden

    return make


@pytest.fixture
def small_tmpfs() -> Iterator[Path]:
    """Mount a file system of 4 MiB, as a container's /dev/shm may be."""
    with tempfile.TemporaryDirectory(prefix="hsstore-test-") as directory:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", directory],
            check=False,
            capture_output=True,
        )
        if mounted.returncode:
            pytest.skip("mounting needs root")
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "-l", directory], check=True)


@contextmanager
def _child(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def child() -> Callable[..., object]:
    """Run Python code in another process: a context manager that waits for its line `ready`."""
    return _child

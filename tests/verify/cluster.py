"""A Dask cluster as its users start one: the commands `dask scheduler` and `dask worker`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from distributed import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 120.0
DASK = Path(sys.executable).with_name("dask")


class Cluster:
    """A scheduler and its workers, each a process group of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""

    def start(self, workers: int) -> None:
        """Start a scheduler on a free port, and its workers, one thread each."""
        file = self._directory / "scheduler.json"
        where = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        self._run("scheduler", *where, "--scheduler-file", file)
        self.address = _wait_for_address(file)
        for number in range(workers):
            self.start_worker(f"worker-{number}")
        if workers:
            self.wait_for(workers)

    def start_worker(self, name: str, *more: str | Path) -> None:
        """Start one more."""
        local = self._directory / name
        local.mkdir(exist_ok=True)
        options = ("--name", name, "--nthreads", "1", "--no-dashboard", "--local-directory", local)
        self._run("worker", self.address, *options, *more, name=name)

    def wait_for(self, workers: int) -> None:
        """Wait until there are so many."""
        with Client(self.address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            client.wait_for_workers(workers, timeout=PATIENCE_SECONDS)

    def is_stopped(self, name: str) -> bool:
        """Tell whether a process of a worker stands still."""
        family = psutil.Process(self._processes[name].pid).children(recursive=True)
        return any(process.status() == psutil.STATUS_STOPPED for process in family)

    def kill(self, name: str) -> None:
        """Kill a worker with all its processes, as a machine that is switched off does."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End everything, workers first."""
        for name in list(self._processes)[::-1]:
            self.kill(name)

    def _run(self, command: str, *arguments: str | Path, name: str = "") -> subprocess.Popen[bytes]:
        with (self._directory / f"{name or command}.log").open("wb") as log:
            process = subprocess.Popen(
                [DASK, command, *map(str, arguments)],
                stdout=log,
                stderr=log,
                cwd=self._directory,
                start_new_session=True,
            )
        self._processes[name or command] = process
        return process


def _wait_for_address(file: Path) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.05)
    raise TimeoutError("the Dask scheduler did not start")


@contextmanager
def dask_cluster(workers: int = 2) -> Iterator[Cluster]:
    """Give a running cluster, and end it."""
    with tempfile.TemporaryDirectory(prefix="hsstore-test-dask-") as path:
        cluster = Cluster(Path(path))
        try:
            cluster.start(workers)
            yield cluster
        finally:
            cluster.stop()

"""Many short processes of the worker's code: forked by one that has loaded everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from extraction.options import DataOptions, ExtractOptions
from tests.extraction.running import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.location import Location


_FORKS = """
import asyncio, json, logging, os, sys
from pathlib import Path
from extraction.options import ExtractOptions
from extraction.status import StatusPage
from extraction import shared_work
from extraction.worker import Worker

shared_work.LOOK_AGAIN_SECONDS = 0.2

def run(wanted):
    log = open(wanted["log"], "w")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=log, force=True)
    page = StatusPage.create(Path(wanted["pages"]))
    worker = Worker(ExtractOptions.model_validate(wanted["options"]), page)
    code = asyncio.run(worker.main())
    print("ended", code, page.read().message, file=log, flush=True)
    page.remove()
    os._exit(code)

for line in sys.stdin:
    wanted = json.loads(line)
    pid = os.fork()
    if not pid:
        run(wanted)
    print(pid, flush=True)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                break
        except ChildProcessError:
            break
"""


class Serving(Protocol):
    """Where a server is."""

    @property
    def url(self) -> str:
        """Base URL."""

    @property
    def spool(self) -> Path:
        """Directory."""


class Fork(NamedTuple):
    """One run, in a process of its own."""

    pid: int
    log: Path

    @property
    def alive(self) -> bool:
        """Whether it is there; a zombie is not."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        while self.alive:
            time.sleep(0.01)

    def ended(self) -> tuple[int, str]:
        """Return its exit code and its last words, once it has ended."""
        _, code, message = self.log.read_text().splitlines()[-1].split(" ", 2)
        return int(code), message


class Forks:
    """Starts runs."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process = process
        self._directory = directory
        self._all: list[Fork] = []

    def start(
        self, store: Location, server: Serving, data: Path | None = None, **options: Any
    ) -> Fork:
        """Start a run, as `run_here` would run it here."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        wanted = ExtractOptions(
            store=store,
            server=server.url,
            spool=server.spool,
            data=DataOptions(files=(data,) if data else ()),
            **(SMALL | options),
        )
        log = self._directory / f"{len(self._all)}.log"
        request = {"options": wanted.model_dump(mode="json"), "log": str(log)}
        print(
            json.dumps(request | {"pages": str(self._directory)}),
            file=self._process.stdin,
            flush=True,
        )
        fork = Fork(int(self._process.stdout.readline()), log)
        self._all.append(fork)
        return fork

    def kill_all(self) -> None:
        """Kill what still runs."""
        for fork in self._all:
            fork.kill()


@contextmanager
def forks(directory: Path) -> Iterator[Forks]:
    """Give a process that starts runs; logs and status pages go to a directory."""
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        found = Forks(process, directory)
        try:
            yield found
        finally:
            found.kill_all()
            process.kill()

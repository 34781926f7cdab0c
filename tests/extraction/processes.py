"""Run the real commands: `hsstore serve` and `hsstore extract`, and look at them from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psutil

from extraction.spool import SpoolView
from extraction.status import StatusPage, stacks_path, watch_path
from hsstore.verify import verify_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from extraction.status import RunStatus

SMALL_STORE = ("--chunk-rows", "16", "--shard-rows", "512", "--span-samples", "25")
"""So small that a few dozen samples fill many blocks and several spans."""
_READY_SECONDS = 120.0
_ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Poll until something is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not true after {seconds} s"
        time.sleep(0.01)


def wait_until_written(log: Path) -> None:
    """Wait for who writes a log in a command's place: the command itself waits for 2 s at most."""
    wait_until(lambda: not any(_writes(path, log) for path in Path("/proc").glob("[0-9]*")))


def _writes(process: Path, log: Path) -> bool:
    with contextlib.suppress(OSError):
        if (process / "fd/2").readlink() == log:
            return b"os.write(2" in (process / "cmdline").read_bytes()
    return False


class Serving(Protocol):
    """Where a server is, of whatever kind."""

    url: str
    spool: Path


@dataclass(slots=True)
class Nowhere:
    """Where no server is."""

    url: str = "http://127.0.0.1:1"
    spool: Path = Path("/nowhere")


class Server:
    """One `hsstore serve --engine embedded` with its own port and spool."""

    def __init__(self, model: Path, directory: Path, *arguments: str) -> None:
        self.spool = directory / "spool"
        self._model = model
        self._log = directory / "server.log"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        directory.mkdir(parents=True, exist_ok=True)

    def start(self) -> Server:
        """Start it; `wait` says when it is ready. A second start takes the same port."""
        port = self.url.rpartition(":")[2] or "0"
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "hsstore",
            "serve",
            self._model,
            "--engine",
            "embedded",
        ]
        options: list[str | Path] = [
            "--port",
            port,
            "--spool",
            self.spool,
            "--threads",
            "1",
            "--layers",
            "0,2,4",
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, *options, *self._arguments],
                stdout=log,
                stderr=log,
                env=_ENVIRONMENT,
                start_new_session=True,
            )
        return self

    def wait(self) -> Server:
        """Wait until it answers."""
        wait_until(lambda: "ready " in self._log.read_text() or not self.alive, _READY_SECONDS)
        assert self.alive, self._log.read_text()
        self.url = self._log.read_text().split("ready ")[1].split()[0]
        return self

    @property
    def pid(self) -> int:
        """Process id, and id of its group."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def forwards(self) -> int:
        """Forwards of the model since it started, by its heartbeat."""
        beat = SpoolView(self.spool).heartbeat()
        return beat.forwards if beat else 0

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group: SIGSTOP makes it stand still, SIGCONT lets it go on."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill the group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
            self._process.wait()

    def settle(self) -> None:
        """Wait until it has done what it had in hand."""
        last = -1
        while (now := self.forwards) != last:
            last = now
            time.sleep(0.3)

    def clear_spool(self) -> None:
        """Remove what no live client needs."""
        for path in self.spool.glob("hs-*"):
            path.unlink()

    def left_in_spool(self) -> list[str]:
        """Name what lies in the spool beside what the server itself keeps there."""
        own = {"server.lock", "server.json", "heartbeat", "free"}
        free = [f"free/{path.name}" for path in (self.spool / "free").iterdir()]
        return sorted({path.name for path in self.spool.iterdir()} - own) + free


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    log: str
    seconds: float


class Extraction:
    """One `hsstore extract` in a session of its own."""

    def __init__(
        self,
        store: Path,
        server: Serving,
        *arguments: str | Path,
        log: Path | None = None,
        with_spool: bool = True,
    ) -> None:
        self._log = log or store.with_name(f"{store.name}.{time.monotonic_ns()}.log")
        command: list[str | Path] = [sys.executable, "-m", "hsstore", "extract", store]
        where: list[str | Path] = ["--server", server.url, "--spool", server.spool]
        if not with_spool:  # there are several
            where = ["--server", f"{server.url}={server.spool}"]
        self._began = time.monotonic()
        with self._log.open("w") as file:
            self.process = subprocess.Popen(
                [*command, *where, *arguments],
                stderr=file,
                stdout=file,
                env=_ENVIRONMENT,
                start_new_session=True,
            )
        self._page: StatusPage | None = None

    def worker(self) -> psutil.Process | None:
        """Return the worker process once it is there."""
        found = self._find_worker()
        return found[0] if found else None

    def _find_worker(self) -> tuple[psutil.Process, Path] | None:
        """Return the worker process and the status page that it was given."""
        # Asked often: psutil's `children` reads the whole process table each time.
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            for children in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
                for pid in children.read_text().split():
                    child = psutil.Process(int(pid))
                    arguments = child.cmdline()
                    if "extraction.worker" in arguments:
                        return child, Path(arguments[arguments.index("extraction.worker") + 1])
        return None

    def status(self) -> RunStatus | None:
        """Read the status page as anyone may."""
        if self._page is None:
            found = self._find_worker()
            if found is None:
                return None
            self._page = StatusPage(found[1])
        return self._page.read()

    def wait_for(self, condition: Callable[[RunStatus], bool], seconds: float = 60.0) -> RunStatus:
        """Wait for a state of the run."""
        found: list[RunStatus] = []

        def look() -> bool:
            assert self.process.poll() is None, self.log()
            status = self.status()
            found[:] = [status] if status is not None and condition(status) else []
            return bool(found)

        wait_until(look, seconds)
        return found[0]

    def log(self) -> str:
        """Return what it has said."""
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> float:
        """Signal the supervisor; returns the time."""
        self.process.send_signal(number)
        return time.monotonic()

    def kill(self) -> None:
        """SIGKILL both processes, the worker first: its supervisor's death would make it commit."""
        worker = self.worker()
        if worker is not None:
            self.status()  # to know the page
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        self.process.kill()
        self.process.wait()
        if worker is not None:
            wait_until(lambda: not worker.is_running() or worker.status() == "zombie")
        self.remove_page()

    def remove_page(self) -> None:
        """Remove the pages, which nobody does after a SIGKILL of the supervisor."""
        if self._page is not None:
            for path in (watch_path(self._page.path), stacks_path(self._page.path)):
                path.unlink(missing_ok=True)
            self._page.remove()
            self._page = None

    def wait(self, seconds: float = 120.0) -> Ended:
        """Wait for the end; kills what does not end in time."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end within {seconds} s:\n{self.log()}") from None
        wait_until_written(self._log)
        return Ended(code, self.log(), time.monotonic() - self._began)


def extract(store: Path, server: Serving, *arguments: str | Path) -> Ended:
    """Run `hsstore extract` to its end."""
    return Extraction(store, server, *arguments).wait()


def verify(store: Path, samples: int) -> None:
    """Verify a store in which everything is complete."""
    report = verify_store(store)
    assert report.ok, report
    assert report.checked == samples


def left_claims(store: Path) -> list[str]:
    """Name the claims that still stand; locks of dead runs are no claims."""
    claims = store.with_name(store.name + ".runs") / "claims"
    return sorted(path.name for path in claims.iterdir() if path.suffix != ".lock")


def remove_spool(server: Server) -> None:
    """Remove what a killed server leaves."""
    shutil.rmtree(server.spool.parent, ignore_errors=True)

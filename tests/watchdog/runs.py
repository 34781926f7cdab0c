"""Run `hsstore extract` and look at it from other terminals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from extraction.diagnosis.find import find_pages
from extraction.status import stacks_path, watch_path
from tests.extraction.processes import SMALL_STORE, wait_until, wait_until_written
from tests.faults.lab import freeze

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from extraction.status import RunStatus
    from tests.extraction.processes import Serving
    from tests.faults.fake import Fake

ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
END_SECONDS = 120.0


class Run:
    """One command, in a session of its own; its log is where `log` says."""

    def __init__(self, store: Path | str, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.store, self.process = store, process
        self._log = log

    def log(self) -> str:
        """Return what it has said."""
        return self._log.read_text()

    def wait_said(self, text: str, seconds: float = 90.0) -> str:
        """Wait until it has said something; return all of it."""
        wait_until(lambda: text in self.log() or self.process.poll() is not None, seconds)
        assert text in self.log(), self.log()
        return self.log()

    def status(self) -> RunStatus | None:
        """Return the run's page."""
        pages = find_pages().of(str(self.store))
        return pages[0].status if pages else None

    def wait_phase(self, phase: str) -> RunStatus:
        """Wait for a phase."""
        wait_until(lambda: (found := self.status()) is not None and found.phase == phase, 90)
        status = self.status()
        assert status is not None
        return status

    def wait(self) -> int:
        """Return its exit code."""
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.log()) from None
        wait_until_written(self._log)
        return code


@contextmanager
def extracting(
    store: Path | str,
    fake: Serving,
    *arguments: str | Path,
    log: Path | None = None,
    cwd: Path | None = None,
    program: tuple[str | Path, ...] = ("-m", "hsstore"),
    **popen: Any,
) -> Iterator[Run]:
    """Start a run; in the end nothing of it is left, if only the disk lets it go."""
    log = log or fake.spool.parent / f"run-{time.monotonic_ns()}.log"
    where = ("--server", fake.url, "--spool", fake.spool, *SMALL_STORE)
    with log.open("w") as file:
        usual: dict[str, Any] = {"stdout": file, "stderr": file, "env": ENVIRONMENT}
        started = subprocess.Popen(
            [sys.executable, *program, "extract", store, *where, *arguments],
            start_new_session=True,
            cwd=cwd,
            **usual | popen,
        )
    run = Run(store, log, cast("subprocess.Popen[bytes]", started))
    try:
        yield run
    finally:
        _end(run)


def beat(fake: Fake, stop: threading.Event) -> None:
    """Let a server's heart beat, though it answers nothing, until it is told to stop."""
    forwards = 1000
    while not stop.wait(0.5):
        forwards += 1
        fake.server.spool.beat(forwards=forwards, queue_depth=1)


def _end(run: Run) -> None:
    status = run.status()
    if status is not None and status.worker_pid:
        with suppress(ProcessLookupError):
            os.killpg(status.worker_pid, signal.SIGKILL)
    run.process.kill()
    run.process.wait()
    for page in find_pages().found:
        if page.status.store == str(run.store):
            for path in (page.path, watch_path(page.path), stacks_path(page.path)):
                path.unlink(missing_ok=True)


def ask_status(store: Path, environment: dict[str, str] = ENVIRONMENT) -> dict[str, Any]:
    """Ask `hsstore status --json`, as a person in another terminal."""
    result = subprocess.run(
        [sys.executable, "-m", "hsstore", "status", store, "--json"],
        capture_output=True,
        check=True,
        timeout=60,
        env=environment,
    )
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def freeze_in_mid_write(fake: Fake, disk: Path) -> None:
    """Freeze the disk while requests wait at a server that holds since before the run; let them go."""
    fake.wait_for_requests(20)
    freeze(disk)
    fake.release()


def kill_worker(status: object) -> None:
    """Kill the worker of a run."""
    pid = getattr(status, "worker_pid", 0)
    assert pid
    os.kill(pid, signal.SIGKILL)


def thread_states(pid: int) -> set[str]:
    """Return the states of a process's threads."""
    states = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for path in Path(f"/proc/{pid}/task").iterdir():
            states.add((path / "stat").read_text().rpartition(")")[2].split()[0])
    return states

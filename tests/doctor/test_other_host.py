"""`hsstore status` and `hsstore doctor` on another host: another name, process table and memory.

A namespace plays that host: it shares the store's file system with the run, and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import jsonschema
import psutil
import pytest

from hsstore.report import Diagnosis
from hsstore.verdict import Verdict
from tests.doctor.conftest import ASKED, FEW, hold_later_ones
from tests.doctor.test_server_verdicts import said
from tests.extraction.processes import wait_until
from tests.faults.asking import SCHEMA
from tests.watchdog.runs import ENVIRONMENT, extracting

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.fake import Fake

HERE = socket.gethostname()
BECOME = 'mount -t tmpfs none /dev/shm && hostname node9 && exec "$@"'
UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc")


def elsewhere(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of ours on node9."""
    command = (*UNSHARE, "sh", "-c", BECOME, "sh", sys.executable, "-m", "hsstore", *arguments)
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=ENVIRONMENT
    )


def ask(store: Path) -> Diagnosis:
    """Ask the doctor on node9."""
    ended = elsewhere("doctor", store, "--json")
    assert ended.stdout, ended.stderr
    jsonschema.validate(json.loads(ended.stdout), json.loads(SCHEMA.read_text()))  # type: ignore[no-untyped-call]
    found = Diagnosis.model_validate_json(ended.stdout)
    assert ended.returncode == found.verdict.exit_code
    return found


def ask_status(store: Path) -> dict[str, Any]:
    """Ask for the status on node9; return that of the one run."""
    ended = elsewhere("status", store, "--json")
    assert ended.returncode == 0, ended.stderr
    (run,) = json.loads(ended.stdout)["runs"]
    found: dict[str, Any] = run
    return found


@pytest.fixture(autouse=True)
def _node9() -> None:
    if subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("to play another host needs root and namespaces")


def copied(store: Path, kind: str = "status") -> Path:
    """Wait for a copy beside the store."""
    runs = store.with_name(f"{store.name}.runs")
    wait_until(lambda: any(runs.glob(f"[!.]*.{kind}.json")), 90)
    return next(runs.glob(f"[!.]*.{kind}.json"))


def test_a_run_that_moves_is_healthy_and_its_copy_tells_host_and_age(
    tmp_path: Path, fake: Fake, data: Path
) -> None:
    store = tmp_path / "s.zarr"
    fake.slowly(4)
    with extracting(store, fake, "--data", data, *FEW) as run:
        run.wait_phase("extracting")
        copy = copied(store)
        wait_until(lambda: json.loads(copy.read_text())["phase"] == "extracting", 60)
        status = ask_status(store)
        shown = elsewhere("status", store).stdout
        found = ask(store)

    assert (status["source"], status["host"], status["exit_code"]) == ("copy", HERE, None)
    assert 0 < status["age_seconds"] < 60
    assert f"on {HERE}, pid " in shown
    assert "in the copy beside the store, " in shown
    assert found.verdict == Verdict.HEALTHY, found
    assert f"it made progress on {HERE} " in found.summary
    said(
        found.evidence,
        f"on {HERE}, not here): by its copy beside the store, written ",
        "health not asked (that is the run's own host)",
        "whether it lives cannot be told from here",
    )
    assert not [line for line in found.evidence if line.startswith(("spool ", "GPU"))]


def test_what_its_own_watchdog_says_is_the_verdict_until_it_is_silent(
    tmp_path: Path, fake: Fake, data: Path
) -> None:
    store = tmp_path / "s.zarr"
    hold_later_ones(fake)
    with extracting(store, fake, "--data", data, *FEW, "--stall-after", "3") as run:
        fake.wait_for_requests(ASKED)
        worker = run.wait_phase("extracting").worker_pid
        os.kill(worker, signal.SIGSTOP)
        run.wait_said("stalled: ")
        copied(store, "stall")
        stalled = ask(store)
        writers = psutil.Process(run.process.pid).children(recursive=True)
        os.killpg(worker, signal.SIGKILL)
        run.process.kill()
        run.process.wait()
        # Who writes the copies waits a moment for last words, and writes once more.
        assert not psutil.wait_procs(writers, timeout=120)[1]
        copy = copied(store)
        os.utime(copy, (time.time() - 3600,) * 2)
        lost = ask(store)

    assert stalled.verdict == Verdict.CLIENT_STUCK, stalled
    assert f"its watchdog on {HERE} reported " in stalled.summary
    assert stalled.advice == f"on {HERE}: let it go on: kill -CONT {worker}"
    said(stalled.evidence, f"{HERE}: worker (pid {worker}): ")
    assert lost.verdict == Verdict.CLIENT_DEAD, lost
    assert f"on {HERE} has given no sign of life for 60 min" in lost.summary
    assert f"`hsstore doctor` on {HERE} sees the process itself" in lost.advice


def test_a_run_that_has_ended_there_is_told_with_its_last_word(
    tmp_path: Path, fake: Fake, data: Path
) -> None:
    store = tmp_path / "s.zarr"
    hold_later_ones(fake)
    with extracting(store, fake, "--data", data, *FEW) as run:
        fake.wait_for_requests(ASKED)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 75
    found, status = ask(store), ask_status(store)
    shown = elsewhere("status", store).stdout

    assert found.verdict == Verdict.CLIENT_DEAD, found
    assert "the last run said: " in found.summary
    said(found.evidence, "ended with 75: ")
    assert status["exit_code"] == 75
    assert "; it has ended with 75" in shown

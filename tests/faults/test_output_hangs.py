"""A disk that does not answer: named with its file within seconds, survived, and nothing lost."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.store import Store
from hsstore.verdict import Verdict
from tests.extraction.processes import SMALL_STORE, Extraction, left_claims, verify, wait_until
from tests.faults.asking import STALL_SECONDS, expect
from tests.faults.conftest import SAMPLES
from tests.faults.fake import Fake, serving
from tests.faults.lab import freeze, thaw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hsstore.report import Diagnosis
    from tests.faults.lab import Fuse

STALL = ("--stall-after", str(STALL_SECONDS))


@pytest.fixture
def server(room: Path) -> Iterator[Fake]:
    """Give a server that takes a second for a request."""
    with serving(room / "spool", SAMPLES) as fake:
        fake.slowly(1)
        yield fake


@contextmanager
def running(store: Path, server: Fake, room: Path, *arguments: str | Path) -> Iterator[Extraction]:
    """Give a run that has committed something; it is gone in the end."""
    run = Extraction(
        store, server, *SMALL_STORE, *STALL, "--max-in-flight", "8", *arguments, log=room / "log"
    )
    try:
        run.wait_for(lambda status: 10 < status.complete_now < SAMPLES // 2)
        yield run
    finally:
        run.kill()


def wait_for_log(run: Extraction, text: str) -> None:
    """Wait until a run has said something."""
    wait_until(lambda: text in run.log() or run.process.poll() is not None, 120)
    assert text in run.log(), run.log()


def check_blocked(diagnosis: Diagnosis, store: Path) -> None:
    """Check that it names the file, the mount and the stack, and what a kill costs."""
    lines = "\n".join(diagnosis.evidence)
    assert f"{store}/" in diagnosis.summary
    assert f"on {store.parent} (" in lines
    assert "stack of worker thread" in lines
    assert "health ok" in lines
    assert diagnosis.kill_cost.kept_in_spool


def test_a_frozen_disk_is_named_and_its_thaw_resumes_with_nothing_redone(
    disk: Path, server: Fake, room: Path, data: Path
) -> None:
    store = disk / "s.zarr"
    with running(store, server, room, "--data", data) as run:
        freeze(disk)
        try:
            diagnosis = expect(store, Verdict.OUTPUT_BLOCKED)
            wait_for_log(run, "output-blocked")
            status = run.status()
        finally:
            thaw(disk)
        ended = run.wait()

    check_blocked(diagnosis, store)
    assert "in state D" in diagnosis.summary
    assert "(ext4, /dev/loop" in diagnosis.summary
    assert status is not None
    assert time.time() - status.updated_seconds < 60  # the process answers
    assert ended.code == 0, ended.log
    assert "recovered after" in ended.log
    asked = [rid.sample for rid in server.server.requests]
    assert len(asked) == len(set(asked)) == SAMPLES
    verify(store, SAMPLES)


@pytest.mark.crash
def test_a_kill_while_the_disk_is_frozen_loses_nothing(
    disk: Path, server: Fake, room: Path, data: Path
) -> None:
    store = disk / "s.zarr"
    with running(store, server, room, "--data", data) as run:
        freeze(disk)
        try:
            run.wait_for(lambda status: any(one.name.startswith("disk:") for one in status.stages))
            time.sleep(1)
            worker = run.worker()
            assert worker is not None
            run.process.kill()
            worker.kill()
            run.process.wait()
            diagnosis = expect(store, Verdict.OUTPUT_BLOCKED)
        finally:
            thaw(disk)
        wait_until(lambda: not worker.is_running() or worker.status() == "zombie")

    before = Store.open(store).completion()
    asked = len(server.server.requests)
    with serving_on(server):
        ended = Extraction(store, server, *STALL, log=room / "again").wait()

    assert any("its supervisor is dead" in line for line in diagnosis.evidence)
    assert ended.code == 0, ended.log
    assert before.complete.any()
    after = Store.open(store).completion()
    assert np.array_equal(after.digest[before.complete], before.digest[before.complete])
    assert len(server.server.requests) - asked <= np.count_nonzero(before.pending)
    assert left_claims(store) == []
    verify(store, SAMPLES)


def test_an_aborted_stall_ends_the_command_though_its_worker_cannot_be_killed(
    disk: Path, server: Fake, room: Path, data: Path
) -> None:
    store = disk / "s.zarr"
    with running(store, server, room, "--data", data, "--stall-abort", "8") as run:
        freeze(disk)
        try:
            began = time.monotonic()
            ended = run.wait()
            seconds = time.monotonic() - began
            diagnosis = expect(store, Verdict.OUTPUT_BLOCKED)
        finally:
            thaw(disk)
        again = Extraction(store, server, log=room / "again").wait()

    assert ended.code == 75, ended.log
    assert "output-blocked" in ended.log
    assert seconds < 60
    assert diagnosis.run
    assert again.code == 0, again.log
    verify(store, SAMPLES)


@pytest.mark.parametrize("fault", ["hang", "hang-writes"])
def test_a_file_system_on_which_operations_hang_is_named_and_goes_on_when_it_answers(
    fuse: Fuse, server: Fake, room: Path, data: Path, fault: str
) -> None:
    store = fuse.mount / "s.zarr"
    with running(store, server, room, "--data", data) as run:
        with fuse.set(fault):
            diagnosis = expect(store, Verdict.OUTPUT_BLOCKED)
            wait_for_log(run, "output-blocked")
        ended = run.wait()

    lines = "\n".join(diagnosis.evidence)
    assert f"on {fuse.mount} (fuse, " in lines
    assert "request_wait_answer" in lines
    assert ended.code == 0, ended.log
    asked = [rid.sample for rid in server.server.requests]
    assert len(asked) == len(set(asked)) == SAMPLES
    verify(store, SAMPLES)


def test_a_slow_disk_is_no_stall(fuse: Fuse, server: Fake, room: Path, data: Path) -> None:
    store = fuse.mount / "s.zarr"
    with running(store, server, room, "--data", data) as run, fuse.set("slow", "0.05"):
        run.wait_for(lambda status: status.complete_now > 0, seconds=150)
        diagnosis = expect(store, Verdict.HEALTHY)
        fuse.end("slow")
        ended = run.wait()

    assert diagnosis.advice == "nothing to do"
    assert ended.code == 0, ended.log
    assert "stalled" not in ended.log


@contextmanager
def serving_on(server: Fake) -> Iterator[None]:
    """Let the server answer at once from now on."""
    server.slowly(0)
    yield


def test_a_signal_ends_a_run_on_a_frozen_disk_within_its_grace(
    disk: Path, server: Fake, room: Path, data: Path
) -> None:
    store = disk / "s.zarr"
    with running(store, server, room, "--data", data, "--grace", "2") as run:
        freeze(disk)
        try:
            run.wait_for(lambda status: any(one.name.startswith("disk:") for one in status.stages))
            sent = run.signal(signal.SIGTERM)
            ended = run.wait()
            seconds = time.monotonic() - sent
        finally:
            thaw(disk)

    assert ended.code == 75, ended.log
    assert seconds < 30

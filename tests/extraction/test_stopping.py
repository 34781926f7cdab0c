"""Signals and deaths of the processes of a run, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from extraction.handshake import SPREAD_REQUESTS
from extraction.spool import RequestId
from extraction.status import StatusPage
from hsstore.store import Store
from tests.extraction.fake_server import serve_fake
from tests.extraction.gate import gated
from tests.extraction.processes import (
    SMALL_STORE,
    Ended,
    Extraction,
    left_claims,
    verify,
    wait_until,
)
from tests.extraction.running import run_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.extraction.processes import Server


SAMPLES = 61
GRACE_SECONDS = 300
SOON_SECONDS = 60
"""What ends sooner has not waited for its grace, however busy the machine is."""


@pytest.fixture
def stuck(server: Server, store: Path, data: Path) -> Iterator[Extraction]:
    """Give a run that has committed something and waits for a server that stands still."""
    with gated(server, SAMPLES, 30) as gate:
        run = Extraction(store, gate, "--data", data, *SMALL_STORE, "--grace", str(GRACE_SECONDS))
        try:
            run.wait_for(lambda status: status.complete_now > 0 and status.in_flight > 0)
            server.signal(signal.SIGSTOP)
            gate.open()
            yield run
        finally:
            server.signal(signal.SIGCONT)
            run.kill()


def waiting(
    store: Path, server: Server, data: Path, grace_seconds: float = GRACE_SECONDS
) -> Extraction:
    """Give a run that waits for a server which never comes."""
    nowhere = ("--spool", store.parent / "none", "--grace", str(grace_seconds))
    run = Extraction(store, server, "--data", data, *nowhere)
    run.wait_for(lambda status: status.phase == "waiting for server")
    return run


def resume(store: Path, server: Server) -> None:
    """Run to the end in this process, and check that nothing complete was touched."""
    before = Store.open(store).completion()
    server.settle()
    forwards = server.forwards

    outcome = asyncio.run(run_here(store, server.url, server.spool))

    after = Store.open(store).completion()
    assert outcome.code == 0, outcome.message
    assert before.complete.any()
    assert np.array_equal(after.digest[before.complete], before.digest[before.complete])
    pending = np.count_nonzero(~before.complete)
    assert outcome.status.complete_now == pending
    assert server.forwards - forwards <= pending + 1 + SPREAD_REQUESTS  # the handshake
    assert outcome.status.complete == len(after.complete) - pending
    assert after.complete.all()
    assert left_claims(store) == []
    verify(store, 61)


def check_stopped(ended: Ended) -> None:
    """Exit code, message, no noise."""
    assert ended.code == 75, ended.log
    assert "To continue, run the same command again" in ended.log
    assert "Traceback" not in ended.log
    assert "never retrieved" not in ended.log
    assert "was destroyed" not in ended.log


def test_a_signal_commits_what_has_arrived_and_ends_though_the_server_stands_still(
    stuck: Extraction, server: Server, store: Path
) -> None:
    before = stuck.status()
    assert before is not None

    sent = stuck.signal(signal.SIGTERM)
    ended = stuck.wait()
    seconds = time.monotonic() - sent

    completion = Store.open(store).completion()
    complete = np.count_nonzero(completion.complete)
    check_stopped(ended)
    assert seconds < SOON_SECONDS
    assert f"interrupted; this run committed {complete} samples" in ended.log
    assert complete >= before.complete_now
    assert Store.open(store).length[completion.complete].sum() >= before.tokens_now
    assert server.left_in_spool() == []
    assert left_claims(store) == []
    assert [run.result for run in Store.open(store).runs()] == ["interrupted"]
    server.signal(signal.SIGCONT)
    resume(store, server)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_any_stop_signal_ends_a_run_that_waits_for_its_server(
    server: Server, store: Path, data: Path, number: signal.Signals
) -> None:
    run = waiting(store, server, data)

    sent = run.signal(number)
    ended = run.wait()

    check_stopped(ended)
    assert "interrupted; this run committed 0 samples" in ended.log
    assert time.monotonic() - sent < SOON_SECONDS
    assert not store.exists()


def test_a_second_signal_ends_at_once_though_the_worker_hangs(
    stuck: Extraction, server: Server, store: Path
) -> None:
    worker = stuck.worker()
    assert worker is not None
    worker.suspend()

    stuck.signal(signal.SIGTERM)
    time.sleep(0.5)
    assert stuck.process.poll() is None
    sent = stuck.signal(signal.SIGINT)
    ended = stuck.wait()

    check_stopped(ended)
    assert time.monotonic() - sent < SOON_SECONDS
    assert "stopped without waiting for the worker" in ended.log
    wait_until(lambda: not worker.is_running())
    server.signal(signal.SIGCONT)
    resume(store, server)


async def test_a_second_request_to_stop_does_not_break_off_the_commits_of_the_first(
    store: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, signals = os.fsync, iter([signal.SIGTERM])

    def slowly(descriptor: int) -> None:
        for number in signals:  # the second, while the commits of the first are under way
            os.kill(os.getpid(), number)
        time.sleep(0.05)
        fsync(descriptor)

    async with serve_fake(store.parent / "spool", 61) as server:
        server.hold, server.held = asyncio.Event(), {60}
        spool = server.spool.directory.path
        run = asyncio.create_task(
            run_here(store, server.url, spool, data, shard_rows=1 << 20, span_samples=None)
        )
        await server.wait_for_requests(61)
        (page,) = map(StatusPage, store.parent.glob("run-*.status"))
        tokens = Store.open(store).length[:60].sum()
        async with asyncio.timeout(60):
            while (status := page.read()) is None or status.tokens_now < tokens:  # noqa: ASYNC110  # a page is polled
                await asyncio.sleep(0.01)
        monkeypatch.setattr(os, "fsync", slowly)
        os.kill(os.getpid(), signal.SIGTERM)
        outcome = await run

    assert outcome.code == 75
    assert outcome.message.startswith("interrupted; this run committed 60 samples")
    assert np.count_nonzero(Store.open(store).completion().complete) == 60


def test_a_signal_that_comes_before_the_worker_is_there_reaches_it(store: Path) -> None:
    program = """
import os, signal, sys, pathlib
from extraction import supervisor
from extraction.options import ExtractOptions
class Early(supervisor._Supervisor):
    def _start(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return super()._start()
supervisor._Supervisor = Early
store = pathlib.Path(sys.argv[1])
url = "http://127.0.0.1:1"
options = ExtractOptions(store=store, server=url, spool=store, grace_seconds=300)
sys.exit(supervisor.supervise(options))
"""
    command: list[str | Path] = [sys.executable, "-c", program, store]
    began = time.monotonic()

    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)

    assert result.returncode == 75, result.stderr
    assert "the worker was killed by signal 15" in result.stderr
    assert "run the same command again" in result.stderr
    assert time.monotonic() - began < 150  # not the 300 s of the grace period


def test_the_grace_period_ends_a_run_whose_worker_hangs(
    server: Server, store: Path, data: Path
) -> None:
    run = waiting(store, server, data, grace_seconds=0.5)
    worker = run.worker()
    assert worker is not None
    worker.suspend()

    sent = run.signal(signal.SIGTERM)
    ended = run.wait()

    check_stopped(ended)
    assert 0.5 <= time.monotonic() - sent < SOON_SECONDS


@pytest.mark.crash
def test_a_killed_worker_is_reported_and_costs_nothing_committed(
    stuck: Extraction, server: Server, store: Path
) -> None:
    worker = stuck.worker()
    assert worker is not None

    worker.kill()
    ended = stuck.wait()

    check_stopped(ended)
    assert "the worker was killed by signal 9 (Killed)" in ended.log
    assert left_claims(store)  # of a dead run: the next one inherits them
    server.signal(signal.SIGCONT)
    resume(store, server)


@pytest.mark.crash
def test_a_killed_supervisor_takes_its_worker_along_which_commits_first(
    stuck: Extraction, server: Server, store: Path
) -> None:
    worker, before = stuck.worker(), stuck.status()
    assert worker is not None
    assert before is not None

    stuck.process.kill()
    stuck.process.wait()
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)

    status = stuck.status()
    completion = Store.open(store).completion()
    assert status is not None
    assert (status.phase, status.exit_code) == ("ended", 75)
    assert np.count_nonzero(completion.complete) == status.complete_now >= before.complete_now
    assert server.left_in_spool() == []
    assert left_claims(store) == []
    server.signal(signal.SIGCONT)
    resume(store, server)


def test_a_worker_whose_supervisor_died_before_it_could_tell_does_nothing(store: Path) -> None:
    page = StatusPage.create(store.parent)

    result = subprocess.run(
        [sys.executable, "-m", "extraction.worker", str(page.path), str(os.getppid())],
        input="{}",
        text=True,
        capture_output=True,
        check=False,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert page.read() is None


@pytest.mark.crash
def test_dumps_of_a_killed_run_are_used_and_the_rest_is_removed(
    server: Server, store: Path, data: Path
) -> None:
    one_block = ("--shard-rows", str(1 << 20), "--chunk-rows", "16")
    with gated(server, SAMPLES, 20) as gate:
        run = Extraction(store, gate, "--data", data, *one_block)
        try:
            run.wait_for(lambda status: status.tokens_now > 0 and gate.answered == 20)
            server.signal(signal.SIGSTOP)
            gate.open()  # some more are under way
            wait_until(lambda: gate.passed > 20)
            run.kill()
        finally:
            server.signal(signal.SIGCONT)
            run.kill()
    server.settle()
    finished = {RequestId.parse(path.stem): path for path in server.spool.glob("hs-*.safetensors")}
    pieces = [server.spool / f"hs-dead-{sample}-1-5.part" for sample in range(3)]
    foreign = server.spool / "notes.txt"
    for path in (*pieces, foreign):
        path.write_text("left behind")
    damaged, *_ = finished.values()
    os.truncate(damaged, 5000)
    forwards = server.forwards

    outcome = asyncio.run(run_here(store, server.url, server.spool))

    server.settle()
    used = len(finished) - 1
    assert used >= 19
    assert outcome.code == 0, outcome.message
    # The dead run may have left a reason, or a part, of the requests that were under way.
    assert f"of a dead run's dumps, {used} are used and " in outcome.log
    assert "files in the spool that are not ours: notes.txt" in outcome.log
    assert server.forwards - forwards == 61 - used + 1 + SPREAD_REQUESTS
    assert server.left_in_spool() == ["notes.txt"]
    foreign.unlink()
    verify(store, 61)

"""A client that stands still: stopped, a deadlock, an endless loop; told apart, in any thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from extraction.options import DataOptions, ExtractOptions
from extraction.status import run_directory
from extraction.watchdog.pages import RunPages
from hsstore.verdict import Verdict
from tests.extraction.processes import wait_until
from tests.faults.asking import expect
from tests.faults.conftest import SAMPLES
from tests.faults.fake import Fake, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from extraction.status import RunStatus

LOCK = "threading.Lock(); lock.acquire(); lock.acquire()"
SPIN = "0\n    while True: lock += 1"
PROGRAM = """
import os, sys, threading, time
from importlib import import_module
import extraction.worker

def hang(*args, **kwargs):
    open({flag!r}, "w").close()
    lock = {how}

owner = getattr(import_module({module!r}), {owner!r})
original = getattr(owner, {name!r})
calls = 0
def broken(*args, **kwargs):
    global calls
    calls += 1
    return original(*args, **kwargs) if calls < 12 else hang()
setattr(owner, {name!r}, broken)
extraction.worker.main()
"""
PLACES = {
    "the event loop": ("extraction.spool.client", "SpoolClient", "open_dump"),
    "the disk's thread": ("extraction.block_sink", "BlockSink", "_append"),
    "an encoder": ("hsstore.writer", "BlockWriter", "_encode"),
    "a checker": ("extraction.pipeline", "Pipeline", "_find_fault"),
}


class Client:
    """A worker without a supervisor: we are that, and see its page."""

    def __init__(self, pages: RunPages, process: subprocess.Popen[str]) -> None:
        self._pages, self.process = pages, process

    def status(self) -> RunStatus | None:
        """Read what it says."""
        return self._pages.status.read()

    def wait_until_extracting(self) -> None:
        """Wait until requests are under way."""

        def extracting() -> bool:
            assert self.process.poll() is None
            status = self.status()
            return status is not None and status.in_flight + status.tokens_now > 0

        wait_until(extracting, 120)


@contextmanager
def working(program: str, store: Path, server: Fake, data: Path) -> Iterator[Client]:
    """Run a program as the worker of a run."""
    options = ExtractOptions(
        store=store, server=server.url, spool=server.spool, data=DataOptions(files=(data,)),
        chunk_rows=16, shard_rows=512, span_samples=25, max_in_flight=8,
    )  # fmt: skip
    pages = RunPages.create(run_directory(), str(store))
    arguments = [str(pages.status.path), str(os.getpid())]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(options.model_dump_json())
        process.stdin.close()
        yield Client(pages, process)
    finally:
        process.kill()
        process.wait()
        pages.remove()


@pytest.fixture
def server(room: Path) -> Iterator[Fake]:
    """Give a server that takes its time."""
    with serving(room / "spool", SAMPLES) as fake:
        fake.slowly(0.3)
        yield fake


@pytest.mark.parametrize(
    ("how", "text", "place"),
    [
        (LOCK, "a deadlock", "the event loop"),
        (LOCK, "a deadlock", "the disk's thread"),
        (LOCK, "a deadlock", "an encoder"),
        (SPIN, "an endless loop", "the event loop"),
        (SPIN, "an endless loop", "a checker"),
    ],
    ids=["lock-loop", "lock-disk", "lock-encoder", "spin-loop", "spin-checker"],
)
def test_a_deadlock_and_an_endless_loop_are_told_apart_by_stack_and_processor(
    room: Path, server: Fake, data: Path, how: str, text: str, place: str
) -> None:
    module, owner, name = PLACES[place]
    flag = room / "it hangs"
    program = PROGRAM.format(how=how, module=module, owner=owner, name=name, flag=str(flag))

    with working(program, room / "s.zarr", server, data):
        wait_until(flag.exists, 120)
        diagnosis = expect(room / "s.zarr", Verdict.CLIENT_STUCK)

    assert text in diagnosis.summary, diagnosis
    assert any("<string>:" in line and "hang" in line for line in diagnosis.evidence), diagnosis


def test_a_stopped_client_is_named_and_goes_on_when_it_is_let(
    room: Path, server: Fake, data: Path
) -> None:
    program = "import extraction.worker; extraction.worker.main()"
    server.hold()
    with working(program, room / "s.zarr", server, data) as client:
        client.wait_until_extracting()
        client.process.send_signal(signal.SIGSTOP)
        try:
            diagnosis = expect(room / "s.zarr", Verdict.CLIENT_STUCK)
        finally:
            client.process.send_signal(signal.SIGCONT)
        server.slowly(0)
        server.release()
        code = client.process.wait(120)
        status = client.status()

    assert f"kill -CONT {client.process.pid}" in diagnosis.advice
    assert code == 0
    assert status is not None
    assert status.message.startswith("complete: all")


def test_a_server_that_accepts_and_never_answers_is_named(
    room: Path, server: Fake, data: Path
) -> None:
    program = "import extraction.worker; extraction.worker.main()"
    server.hold()
    with working(program, room / "s.zarr", server, data) as client:
        client.wait_until_extracting()
        diagnosis = expect(room / "s.zarr", Verdict.SERVER_HUNG)
        server.release()

    assert "heartbeat stands still" in diagnosis.summary
    assert diagnosis.kill_cost.asked_again


def test_a_dead_client_is_named_with_what_the_next_run_finds(
    room: Path, server: Fake, data: Path
) -> None:
    program = "import extraction.worker; extraction.worker.main()"
    server.hold()
    with working(program, room / "s.zarr", server, data) as client:
        client.wait_until_extracting()
        client.process.kill()
        client.process.wait()
        diagnosis = expect(room / "s.zarr", Verdict.CLIENT_DEAD)

    assert "it takes what lies in the spool" in diagnosis.advice
    assert any("not running" in line for line in diagnosis.evidence)


def test_a_slow_server_is_healthy(room: Path, server: Fake, data: Path) -> None:
    program = "import extraction.worker; extraction.worker.main()"
    with working(program, room / "s.zarr", server, data) as client:
        client.wait_until_extracting()
        server.slowly(1.5)
        diagnosis = expect(room / "s.zarr", Verdict.HEALTHY)

    assert diagnosis.advice == "nothing to do"

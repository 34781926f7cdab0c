"""What ends a run that is nobody's fault but ours: an exit code of its own, and no hang."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from extraction.supervisor import _in_memory
from tests.faults.test_client_hangs import working
from tests.watchdog.runs import extracting

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.fake import Fake

BUG = 70
BROKEN_WORKER = """
import extraction.worker
from {module} import {owner}
calls = 0
original = {owner}.{name}
def broken(*args, **kwargs):
    global calls
    calls += 1
    if calls < {call}:
        return original(*args, **kwargs)
    raise KeyError("injected")
{owner}.{name} = broken
extraction.worker.main()
"""
BROKEN_SUPERVISOR = """
import extraction.supervisor
def broken(*_):
    raise KeyError("injected")
extraction.supervisor._Supervisor._follow = broken
from hsstore.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "owner", "name", "call"),
    [
        ("extraction.block_sink", "BlockSink", "_append", 2),
        ("extraction.stages", "StageTable", "states", 2),
    ],
    ids=["in the work", "in what publishes the state"],
)
def test_a_bug_ends_the_worker_with_a_code_of_its_own(
    place: Path, fake: Fake, data: Path, module: str, owner: str, name: str, call: int
) -> None:
    """Not with 1, which says that all is done and some samples are bad; nor does it go on unseen."""
    program = BROKEN_WORKER.format(module=module, owner=owner, name=name, call=call)
    fake.slowly(0.3)
    with working(program, place / "s.zarr", fake, data) as worker:
        code = worker.process.wait(120)
        status = worker.status()

    assert code == BUG
    assert status is not None
    assert status.exit_code == BUG
    assert "unexpected KeyError: 'injected'" in status.message


def test_a_bug_of_the_supervisor_ends_the_run_with_that_code_too(
    place: Path, fake: Fake, data: Path
) -> None:
    with extracting(
        place / "s.zarr", fake, "--data", data, program=("-c", BROKEN_SUPERVISOR)
    ) as run:
        code = run.wait()

    assert code == BUG
    assert "unexpected KeyError: 'injected' (<string>:4); please report this" in run.log()


def test_a_worker_that_dies_before_it_says_a_word_is_a_bug(
    place: Path, fake: Fake, data: Path
) -> None:
    environment = os.environ | {"PYTHONPATH": str(place / "broken")}
    (place / "broken").mkdir()
    (place / "broken" / "psutil.py").write_text("raise SystemExit(1)")  # only the worker needs it
    with extracting(place / "s.zarr", fake, "--data", data, env=environment) as run:
        code = run.wait()

    assert "the worker ended with 1 before it said why" in run.log()
    assert code == BUG


def test_a_closed_terminal_stops_the_run_as_a_request_does(
    place: Path, fake: Fake, data: Path
) -> None:
    fake.hold()
    with extracting(place / "s.zarr", fake, "--data", data) as run:
        fake.wait_for_requests(10)
        run.process.send_signal(signal.SIGHUP)
        code = run.wait()

    assert code == 75
    assert "To continue, run the same command again" in run.log()


def test_options_of_any_size_wait_for_no_reader() -> None:
    with _in_memory("x" * 300_000) as file:
        assert len(file.read()) == 300_000

"""`hsstore doctor` asked while a real `hsstore extract` waits for its server or its spool."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from extraction.diagnosis.find import find_pages
from extraction.spool import SpoolServer
from extraction.status import stacks_path
from hsstore.verdict import Verdict
from tests.doctor.conftest import ASKED, FEW, SAMPLES, hold_later_ones
from tests.extraction.fake_model import Fault
from tests.extraction.mounts import small_tmpfs
from tests.extraction.processes import Nowhere
from tests.faults.asking import expect
from tests.faults.fake import Fake, serving
from tests.watchdog.runs import ENVIRONMENT, extracting

if TYPE_CHECKING:
    from pathlib import Path

DEAF = """
import os
from extraction.spool_watch import SpoolWatch

scan = SpoolWatch._scan
SpoolWatch._scan = lambda self: None if os.path.exists({flag!r}) else scan(self)
"""
"""A client that does not see what lies in the spool once a file is there."""


def said(lines: tuple[str, ...], *texts: str) -> None:
    """Check that each text is in one line of the evidence."""
    for text in texts:
        assert any(text in line for line in lines), (text, lines)


def test_a_run_on_a_slow_server_is_healthy(place: Path, fake: Fake, data: Path) -> None:
    store = place / "s.zarr"
    with extracting(store, fake, "--data", data, *FEW):
        fake.wait_for_requests(8)
        fake.slowly(1.5)
        found = expect(store, Verdict.HEALTHY)
        (page,) = find_pages().of(str(store))
        # A signal handler that reads the frames of running threads can crash them.
        was_not_disturbed = stacks_path(page.path).stat().st_size == 0

    assert was_not_disturbed
    assert "it made progress" in found.summary
    assert found.advice == "nothing to do"
    said(
        found.evidence, "extracting; its supervisor lives", "health ok", "answers reads and writes"
    )


def test_a_server_that_is_still_loading_is_waited_for(place: Path, data: Path) -> None:
    store = place / "s.zarr"
    with SpoolServer(place / "loading") as loading:
        nowhere = Nowhere(spool=loading.directory.path)
        with extracting(store, nowhere, "--data", data) as run:
            run.wait_phase("waiting for server")
            found = expect(store, Verdict.WAITING_FOR_SERVER)

    assert "it is loading" in found.summary
    assert "nothing to do while it loads" in found.advice
    said(found.evidence, f"spool {loading.directory.path}: server alive, client absent")


def test_a_server_that_is_gone_is_down(place: Path, data: Path) -> None:
    store = place / "s.zarr"
    with serving(place / "spool", SAMPLES) as fake:
        fake.slowly(0.3)
        hold_later_ones(fake)
        with extracting(store, fake, "--data", data, *FEW):
            fake.wait_for_requests(ASKED)
            fake.run(fake.server.leave())
            fake.server.spool.close()
            found = expect(store, Verdict.SERVER_DOWN)

    assert "is held by no server" in found.summary
    assert "start it again" in found.advice
    said(found.evidence, "server absent, client alive", f"server {fake.url}: health refused")


def test_a_server_that_answers_nothing_hangs(place: Path, fake: Fake, data: Path) -> None:
    store = place / "s.zarr"
    hold_later_ones(fake)
    with extracting(store, fake, "--data", data, *FEW):
        fake.wait_for_requests(ASKED)
        found = expect(store, Verdict.SERVER_HUNG)
        fake.release()

    assert "its heartbeat stands still" in found.summary
    said(found.evidence, ", standing still; ", "stage request: 4 items")
    assert len(found.kill_cost.asked_again) == 4


def test_answers_without_dumps_are_dumps_that_are_missing(
    place: Path, fake: Fake, data: Path
) -> None:
    store = place / "s.zarr"
    fake.server.always = dict.fromkeys(range(20, SAMPLES), Fault.NO_DUMP)
    with extracting(store, fake, "--data", data, *FEW):
        fake.wait_for_requests(21)
        found = expect(store, Verdict.DUMP_MISSING)

    assert "their dumps did not come" in found.summary
    assert "what the plugin says" in found.advice
    said(found.evidence, "stage answered: 4 items")


def test_finished_dumps_that_the_client_does_not_take_are_unread(
    place: Path, fake: Fake, data: Path
) -> None:
    store, flag = place / "s.zarr", place / "deaf"
    (place / "sitecustomize.py").write_text(DEAF.format(flag=str(flag)))
    environment = ENVIRONMENT | {"PYTHONPATH": str(place)}
    hold_later_ones(fake)
    with extracting(store, fake, "--data", data, *FEW, env=environment):
        fake.wait_for_requests(ASKED)
        flag.touch()
        fake.release()
        found = expect(store, Verdict.DUMP_UNREAD)

    assert "finished dumps lie in the spool unread" in found.summary
    assert "the dumps are used then" in found.advice
    assert found.kill_cost.kept_in_spool
    said(found.evidence, "finished dumps, oldest", "stack of worker thread")


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount needs root")
def test_a_spool_that_somebody_else_has_filled_is_full(place: Path, data: Path) -> None:
    store = place / "s.zarr"
    with (
        small_tmpfs(4 << 20) as memory,
        serving(memory / "spool", SAMPLES) as fake,
    ):
        fake.slowly(0.3)
        hold_later_ones(fake)
        with extracting(store, fake, "--data", data, *FEW, log=place / "log"):
            fake.wait_for_requests(ASKED)
            status = os.statvfs(memory)
            with (memory / "somebody else's").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize)
            fake.release()
            found = expect(store, Verdict.SPOOL_FULL)

    assert str(memory / "spool") in found.summary
    assert "remove what is not needed" in found.advice or "look who fills it" in found.advice
    said(found.evidence, "spool: room for ")

"""A run that has committed a part and waits for its server: what happens next, happens in mid write."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.extraction.processes import SMALL_STORE, Extraction, wait_until
from tests.faults.asking import STALL_SECONDS
from tests.faults.conftest import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from extraction.status import RunStatus
    from hsstore.report import Diagnosis
    from tests.faults.fake import Fake

STALL = ("--stall-after", str(STALL_SECONDS))
ANSWERED = 60
"""Samples that the server answers at once; it holds the others until it is released."""


@contextmanager
def running(store: Path, server: Fake, room: Path, *arguments: str | Path) -> Iterator[Extraction]:
    """Give a run that has committed something, while 8 requests are held; it is gone in the end."""
    server.server.held = set(range(ANSWERED, SAMPLES))
    server.hold()
    run = Extraction(
        store, server, *SMALL_STORE, *STALL, "--max-in-flight", "8", *arguments, log=room / "log"
    )
    try:
        run.wait_for(lambda status: status.complete_now > 10 and status.in_flight == 8, seconds=120)
        yield run
    finally:
        run.kill()


def is_in_a_disk_call(status: RunStatus) -> bool:
    """Tell whether a call into the file system has not returned."""
    return any(one.name.startswith("disk:") for one in status.stages)


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

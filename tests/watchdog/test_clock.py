"""A wall clock that jumps in mid run: no stall, no death and no age comes from it."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from hsstore.verdict import Verdict
from tests.extraction.processes import verify, wait_until
from tests.faults.asking import expect
from tests.faults.clock import Clock
from tests.faults.lab import LabError
from tests.watchdog.conftest import SAMPLES
from tests.watchdog.runs import ENVIRONMENT, ask_status, beat, extracting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.fake import Fake
    from tests.watchdog.runs import Run

HOUR = 3600
SOON_SECONDS = 120
"""No age in these runs is larger, however busy the machine."""


def ages(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield every age in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ages(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from ages(inner, name)
    elif isinstance(value, int | float) and "age_seconds" in name:
        yield name, value


@pytest.fixture
def clock(place: Path) -> Clock:
    """Give a clock that can jump."""
    try:
        return Clock(place)
    except LabError as error:
        pytest.skip(str(error))


@contextmanager
def beating(fake: Fake) -> Iterator[None]:
    """Let the server work for a while, though it answers nothing."""
    stop = threading.Event()
    thread = threading.Thread(target=beat, args=(fake, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["an hour ahead", "an hour back"])
def test_a_clock_that_jumps_makes_no_stall_no_death_and_no_odd_age(
    place: Path, fake: Fake, data: Path, clock: Clock, jump: int
) -> None:
    """Neither while the run goes on nor while it stands; and a stall is as long as it is."""
    store, environment = place / "s.zarr", ENVIRONMENT | clock.environment
    fake.server.held = set(range(SAMPLES // 2, SAMPLES))
    fake.hold()
    limits = ("--stall-after", "8", "--max-in-flight", "4", "--data", data)
    with extracting(store, fake, *limits, env=environment) as run:
        with beating(fake):
            wait_until(lambda: _committed(run) > 0)
            clock.jump(jump)
            wait_until(lambda: _is_off(run, jump))
            healthy = expect(store, Verdict.HEALTHY, env=environment)
            going = ask_status(store, environment)
            first = run.log()
        run.wait_said("stalled: no progress for")
        hung = expect(store, Verdict.SERVER_HUNG, env=environment)
        standing = ask_status(store, environment)
        clock.jump(0)
        with beating(fake):
            run.wait_said("recovered after")
            fake.release()
            code = run.wait()

    assert code == 0, run.log()
    assert "stalled" not in first
    lines = "\n".join([*healthy.evidence, *hung.evidence, run.log()])
    assert not re.search(r"-\d[\d.]* s\b", lines), lines
    # Not the ages of files in the spool: they are dated by the clock that jumps.
    seconds = [float(one) for one in re.findall(r"(?:for|after) ([\d.]+) s\b", lines)]
    assert max(seconds) < SOON_SECONDS, lines
    found = [age for seen in (going, standing) for _, age in ages(seen)]
    assert len(found) > 4
    assert 0 <= min(found) <= max(found) < SOON_SECONDS, (going, standing)
    verify(store, SAMPLES)


def _committed(run: Run) -> int:
    status = run.status()
    return status.complete_now if status else 0


def _is_off(run: Run, seconds: float) -> bool:
    status = run.status()
    return status is not None and abs(status.updated_seconds - time.time() - seconds) < SOON_SECONDS

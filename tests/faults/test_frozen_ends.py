"""A run on a frozen disk ends when it has to, though its worker cannot be killed."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from hsstore.verdict import Verdict
from tests.extraction.processes import Extraction, verify
from tests.faults.asking import expect
from tests.faults.conftest import SAMPLES
from tests.faults.halfway import is_in_a_disk_call, running
from tests.faults.lab import freeze, thaw

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.fake import Fake


def test_an_aborted_stall_ends_the_command_though_its_worker_cannot_be_killed(
    disk: Path, server: Fake, room: Path, data: Path
) -> None:
    store = disk / "s.zarr"
    with running(store, server, room, "--data", data, "--stall-abort", "8") as run:
        freeze(disk)
        try:
            server.release()
            ended = run.wait()
            diagnosis = expect(store, Verdict.OUTPUT_BLOCKED)
        finally:
            thaw(disk)
        again = Extraction(store, server, log=room / "again").wait()

    assert ended.code == 75, ended.log
    assert "output-blocked" in ended.log
    assert diagnosis.run
    assert again.code == 0, again.log
    verify(store, SAMPLES)


def test_a_signal_ends_a_run_on_a_frozen_disk_within_its_grace(
    disk: Path, server: Fake, room: Path, data: Path
) -> None:
    store = disk / "s.zarr"
    with running(store, server, room, "--data", data, "--grace", "2") as run:
        freeze(disk)
        try:
            server.release()
            run.wait_for(is_in_a_disk_call)
            sent = run.signal(signal.SIGTERM)
            ended = run.wait()
            seconds = time.monotonic() - sent
        finally:
            thaw(disk)

    assert ended.code == 75, ended.log
    assert seconds < 60  # the stall alone would last for ever

"""`hsstore doctor` asked about a real `hsstore extract` that stands still, is gone, or has ended."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hsstore.verdict import Verdict
from tests.doctor.conftest import ASKED, FEW, SAMPLES, hold_later_ones
from tests.doctor.test_server_verdicts import said
from tests.faults import lab
from tests.faults.asking import expect
from tests.watchdog.runs import extracting

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.fake import Fake


def test_a_store_that_is_full_of_samples_is_finished(place: Path, fake: Fake, data: Path) -> None:
    store = place / "s.zarr"
    fake.slowly(0)
    with extracting(store, fake, "--data", data) as run:
        code = run.wait()
    found = expect(store, Verdict.FINISHED)

    assert code == 0, run.log()
    assert found.advice == "`hsstore verify` proves the store"
    said(found.evidence, f"store: {SAMPLES} of {SAMPLES} samples complete, 0 failed, 0 pending")


def test_a_run_that_was_killed_is_dead(place: Path, fake: Fake, data: Path) -> None:
    store = place / "s.zarr"
    hold_later_ones(fake)
    with extracting(store, fake, "--data", data, *FEW) as run:
        fake.wait_for_requests(ASKED)
        worker = run.wait_phase("extracting").worker_pid
        os.killpg(worker, signal.SIGKILL)
        run.process.kill()
        run.process.wait()
        found = expect(store, Verdict.CLIENT_DEAD)

    assert "no process works on this store" in found.summary
    assert "run the same `hsstore extract` command again" in found.advice
    said(found.evidence, f"worker (pid {worker}): not running", "its supervisor is dead")
    assert "no committed sample is lost" in found.kill_cost.text


def test_a_worker_that_is_stopped_is_stuck(place: Path, fake: Fake, data: Path) -> None:
    store = place / "s.zarr"
    hold_later_ones(fake)
    with extracting(store, fake, "--data", data, *FEW) as run:
        fake.wait_for_requests(ASKED)
        worker = run.wait_phase("extracting").worker_pid
        os.kill(worker, signal.SIGSTOP)
        found = expect(store, Verdict.CLIENT_STUCK)
        os.kill(worker, signal.SIGCONT)

    assert found.advice == f"let it go on: kill -CONT {worker}"
    said(found.evidence, f"worker (pid {worker}): ", "is in state T")


def test_a_server_of_another_model_does_not_belong_to_the_store(
    place: Path, fake: Fake, data: Path
) -> None:
    store = place / "s.zarr"
    hold_later_ones(fake)
    with extracting(store, fake, "--data", data, *FEW) as run:
        fake.wait_for_requests(ASKED)
        run.process.send_signal(signal.SIGTERM)
        first = run.wait()
    fake.server.spool.announce(replace(fake.server.info, capture_hash="0" * 64))
    with extracting(store, fake) as again:
        second = again.wait()
    found = expect(store, Verdict.PLAN_MISMATCH)

    assert (first, second) == (75, 3), again.log()
    assert "the server captures 0000000000000000, the store holds ffffffffffffffff" in found.summary
    assert "use the server, model and data that the store was made with" in found.advice


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount needs root")
def test_a_disk_without_room_is_full(place: Path, fake: Fake, data: Path) -> None:
    try:
        with lab.ext4(place) as disk:
            store = disk / "s.zarr"
            hold_later_ones(fake)
            with extracting(store, fake, "--data", data, *FEW) as run:
                fake.wait_for_requests(ASKED)
                lab.use_up_bytes(disk)
                fake.release()
                code = run.wait()
                found = expect(store, Verdict.OUTPUT_FULL)
    except lab.LabError as error:
        pytest.skip(str(error))

    assert code == 74, run.log()
    assert "the output file system is full" in found.summary
    assert f"free space or inodes on {disk} (ext4, " in found.advice
    said(found.evidence, f"output {store} on {disk} (ext4, ", "bytes free")

"""A disk that freezes in mid write: named with its file within seconds, survived, nothing lost."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.store import Store
from hsstore.verdict import Verdict
from tests.extraction.processes import Extraction, left_claims, verify, wait_until
from tests.faults.asking import expect
from tests.faults.conftest import SAMPLES
from tests.faults.halfway import STALL, check_blocked, is_in_a_disk_call, running, wait_for_log
from tests.faults.lab import freeze, thaw
from tests.watchdog.runs import thread_states

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.fake import Fake


def test_a_frozen_disk_is_named_and_its_thaw_resumes_with_nothing_redone(
    disk: Path, server: Fake, room: Path, data: Path
) -> None:
    store = disk / "s.zarr"
    with running(store, server, room, "--data", data) as run:
        freeze(disk)
        try:
            server.release()
            diagnosis = expect(store, Verdict.OUTPUT_BLOCKED)
            wait_for_log(run, "output-blocked")
            status = run.status()
            os.kill(run.process.pid, signal.SIGSTOP)  # all the rest is done before it looks again
        finally:
            thaw(disk)
        run.wait_for(lambda status: status.exit_code is not None, seconds=60)
        os.kill(run.process.pid, signal.SIGCONT)
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
            server.release()
            run.wait_for(is_in_a_disk_call)
            worker = run.worker()
            assert worker is not None
            wait_until(lambda: "D" in thread_states(worker.pid))
            run.process.kill()
            worker.kill()
            run.process.wait()
            diagnosis = expect(store, Verdict.OUTPUT_BLOCKED)
        finally:
            thaw(disk)
        wait_until(lambda: not worker.is_running() or worker.status() == "zombie")

    before = Store.open(store).completion()
    asked = len(server.server.requests)
    ended = Extraction(store, server, *STALL, log=room / "again").wait()

    assert any("its supervisor is dead" in line for line in diagnosis.evidence)
    assert ended.code == 0, ended.log
    assert before.complete.any()
    after = Store.open(store).completion()
    assert np.array_equal(after.digest[before.complete], before.digest[before.complete])
    assert len(server.server.requests) - asked <= np.count_nonzero(before.pending)
    assert left_claims(store) == []
    verify(store, SAMPLES)

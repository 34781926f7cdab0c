"""What is a stall and what is not, with real processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from tests.extraction.processes import verify, wait_until
from tests.watchdog.conftest import SAMPLES
from tests.watchdog.runs import ask_status, beat, extracting, kill_worker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.fake import Fake


def test_a_very_slow_server_whose_heart_beats_is_never_reported(
    place: Path, fake: Fake, data: Path
) -> None:
    store = place / "store.zarr"
    stop = threading.Event()
    arguments = ("--data", data, "--stall-after", "10", "--stall-abort", "12")
    fake.hold()
    with extracting(store, fake, *arguments) as run:
        fake.wait_for_requests(1)
        beating = threading.Thread(target=beat, args=(fake, stop))
        beating.start()
        try:
            time.sleep(15)
            seen = ask_status(store)
            fake.release()
            code = run.wait()
        finally:
            stop.set()
            beating.join()

    assert "stalled" not in run.log()
    assert seen["runs"][0]["stall"] is None
    assert seen["runs"][0]["progress_age_seconds"] < 10
    assert code == 0, run.log()


def test_a_stopped_worker_is_a_stuck_client_and_goes_on_when_it_is_let(
    place: Path, fake: Fake, data: Path
) -> None:
    store = place / "store.zarr"
    fake.hold()
    with extracting(store, fake, "--data", data, "--stall-after", "2") as run:
        fake.wait_for_requests(10)
        status = run.status()
        assert status is not None
        os.kill(status.worker_pid, signal.SIGSTOP)
        said = run.wait_said("stalled: ")
        seen = ask_status(store)
        os.kill(status.worker_pid, signal.SIGCONT)
        fake.release()
        run.wait_said("recovered after")
        code = run.wait()

    assert ": client-stuck: " in said
    assert seen["runs"][0]["stall"]["verdict"] == "client-stuck"
    assert code == 0, run.log()
    verify(store, SAMPLES)


def test_waiting_for_a_server_is_said_and_is_not_a_stall(
    place: Path, fake: Fake, data: Path
) -> None:
    store = place / "store.zarr"
    arguments = ("--data", data, "--stall-after", "2", "--stall-abort", "3")
    with extracting(store, fake, *arguments, "--spool", place / "none") as run:
        run.wait_phase("waiting for server")
        run.wait_said("waiting for the server for")
        time.sleep(3)
        alive = run.process.poll() is None
        run.process.send_signal(signal.SIGTERM)
        code = run.wait()

    assert alive, run.log()
    assert "stalled" not in run.log()
    assert code == 75


def test_a_run_that_was_killed_is_seen_as_dead_and_a_new_one_removes_its_pages(
    place: Path, fake: Fake, data: Path
) -> None:
    store = place / "store.zarr"
    fake.hold()
    with extracting(store, fake, "--data", data) as run:
        fake.wait_for_requests(10)
        wait_until(lambda: (seen := run.status()) is not None and seen.in_flight > 0, 60)
        kill_worker(run.status())
        run.process.kill()
        run.process.wait()
        dead = ask_status(store)
        fake.release()
        with extracting(store, fake) as again:
            live_code = again.wait()
        after = ask_status(store)

    assert dead["runs"][0]["source"] == "dead"
    assert dead["runs"][0]["in_flight"] > 0
    assert live_code == 0, again.log()
    assert {one["source"] for one in after["runs"]} == {"copy"}

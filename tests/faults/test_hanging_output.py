"""A file system whose operations hang, or are slow: the one is named, the other is no fault."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hsstore.verdict import Verdict
from tests.extraction.processes import verify
from tests.faults.asking import expect
from tests.faults.conftest import SAMPLES
from tests.faults.halfway import running, wait_for_log

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.fake import Fake
    from tests.faults.lab import Fuse


@pytest.mark.parametrize("fault", ["hang", "hang-writes"])
def test_a_file_system_on_which_operations_hang_is_named_and_goes_on_when_it_answers(
    fuse: Fuse, server: Fake, room: Path, data: Path, fault: str
) -> None:
    store = fuse.mount / "s.zarr"
    with running(store, server, room, "--data", data) as run:
        with fuse.set(fault):
            server.release()
            diagnosis = expect(store, Verdict.OUTPUT_BLOCKED)
            wait_for_log(run, "output-blocked")
        ended = run.wait()

    lines = "\n".join(diagnosis.evidence)
    assert f"on {fuse.mount} (fuse, " in lines
    assert "request_wait_answer" in lines
    assert ended.code == 0, ended.log
    asked = [rid.sample for rid in server.server.requests]
    assert len(asked) == len(set(asked)) == SAMPLES
    verify(store, SAMPLES)


def test_a_slow_disk_is_no_stall(fuse: Fuse, server: Fake, room: Path, data: Path) -> None:
    store = fuse.mount / "s.zarr"
    with running(store, server, room, "--data", data) as run, fuse.set("slow", "0.05"):
        committed = run.wait_for(lambda _: True).complete_now
        server.slowly(2)
        server.release()
        run.wait_for(lambda status: status.complete_now > committed, seconds=150)
        diagnosis = expect(store, Verdict.HEALTHY)
        fuse.end("slow")
        server.slowly(0)
        ended = run.wait()

    assert diagnosis.advice == "nothing to do"
    assert ended.code == 0, ended.log
    assert "stalled" not in ended.log


def test_a_hanging_disk_of_another_run_is_not_blamed_on_this_store(
    fuse: Fuse, server: Fake, room: Path, data: Path
) -> None:
    nothing = room / "folder"
    nothing.mkdir()
    store = fuse.mount / "s.zarr"
    with running(store, server, room, "--data", data) as run, fuse.set("hang"):
        server.release()
        expect(store, Verdict.OUTPUT_BLOCKED)
        doctor = hsstore("doctor", nothing)
        status = hsstore("status", nothing)
        run.kill()

    assert (doctor.returncode, doctor.stdout) == (2, "")
    assert "is no store of ours" in doctor.stderr
    assert (status.returncode, status.stdout) == (2, "")
    assert "no run is known, and there is no store" in status.stderr


def hsstore(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    command: list[str | Path] = [sys.executable, "-m", "hsstore", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)

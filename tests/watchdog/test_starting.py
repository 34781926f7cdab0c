"""A worker is started, and started again, also where its program lies on a disk that hangs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.extraction.processes import verify, wait_until
from tests.faults.lab import thaw
from tests.watchdog.conftest import SAMPLES
from tests.watchdog.runs import extracting, freeze_in_mid_write, kill_worker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.fake import Fake
    from tests.faults.lab import Fuse

OTHER_INTERPRETER = """
import sys
from hsstore.cli import main
sys.executable = {interpreter!r}
main()
"""
NO_SHELL = """
import extraction.watchdog.start
extraction.watchdog.start.SHELL = ({shell!r}, *extraction.watchdog.start.SHELL[1:])
from hsstore.cli import main
main()
"""
START = """
import os, sys
from extraction.supervisor import _in_memory
from extraction.watchdog.start import Start
worker = Start([sys.argv[1]], _in_memory("")).wait(60)
print("returned", flush=True)
worker.kill()
os._exit(0)
"""


def test_a_worker_is_started_without_waiting_for_the_disk_of_its_interpreter(
    hanging: Fuse,
) -> None:
    program = hanging.mount / "true"
    shutil.copy("/bin/true", program)
    program.chmod(0o755)
    with hanging.set("hang"):
        said = subprocess.check_output(
            [sys.executable, "-c", START, program], text=True, timeout=60
        )

    assert said == "returned\n"


def test_a_worker_that_cannot_even_be_loaded_is_said_and_given_up(
    hanging: Fuse, place: Path, fake: Fake, data: Path
) -> None:
    """The system's own disk is gone: the kernel does not come back with the shell."""
    shell = hanging.mount / "sh"
    shutil.copy("/bin/sh", shell)
    shell.chmod(0o755)
    program = NO_SHELL.format(shell=str(shell))
    arguments = ("--data", data, "--stall-after", "2", "--stall-abort", "8")
    with (
        hanging.set("hang"),
        extracting(place / "s.zarr", fake, *arguments, program=("-c", program)) as run,
    ):
        code = run.wait()

    assert "the worker has not started for" in run.log()
    assert "the worker was not started: the disk with its program does not answer" in run.log()
    assert code == 75


def test_a_killed_worker_is_started_again_as_often_as_allowed(
    place: Path, fake: Fake, data: Path
) -> None:
    store = place / "store.zarr"
    fake.hold()
    with extracting(store, fake, "--data", data, "--restart", "1") as run:
        fake.wait_for_requests(10)
        first = run.wait_phase("extracting").worker_pid
        kill_worker(run.status())
        run.wait_said("starting again (1 of 1)")
        wait_until(lambda: (now := run.status()) is not None and now.worker_pid not in {0, first})
        run.wait_phase("extracting")
        kill_worker(run.status())
        code = run.wait()

    assert code == 75
    assert run.log().count("killed by signal 9") == 2


def test_a_restart_waits_until_the_old_worker_is_gone_and_then_completes_the_store(
    disk: Path, fake: Fake, data: Path
) -> None:
    store = disk / "store.zarr"
    arguments = ("--data", data, "--stall-after", "2", "--stall-abort", "4", "--restart", "1")
    fake.hold()
    with extracting(store, fake, *arguments) as run:
        freeze_in_mid_write(fake, disk)
        said = run.wait_said("waiting for the killed worker")
        thaw(disk)
        run.wait_said("starting again (1 of 1)")
        code = run.wait()

    assert "starting again" not in said
    assert code == 0, run.log()
    verify(store, SAMPLES)


def test_a_restart_whose_interpreter_lies_on_a_disk_that_hangs_is_said_and_ended_too(
    disk: Path, hanging: Fuse, fake: Fake, data: Path
) -> None:
    store, interpreter = disk / "store.zarr", hanging.mount / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    program = OTHER_INTERPRETER.format(interpreter=str(interpreter))
    arguments = ("--data", data, "--stall-after", "2", "--stall-abort", "5", "--restart", "1")
    fake.hold()
    with extracting(store, fake, *arguments, program=("-c", program)) as run:
        freeze_in_mid_write(fake, disk)
        run.wait_said("waiting for the killed worker")
        with hanging.set("hang"):
            thaw(disk)
            run.wait_said("starting again (1 of 1)")
            code = run.wait()

    said = run.log().partition("starting again (1 of 1)")[2]
    assert "stalled: no progress for" in said
    assert "(--stall-abort): the worker" in said
    assert code == 75

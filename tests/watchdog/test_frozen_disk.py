"""The disk freezes in mid write: it is said, seen from everywhere, and survived."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema

from tests.extraction.processes import verify, wait_until
from tests.faults.lab import thaw
from tests.watchdog.conftest import SAMPLES
from tests.watchdog.runs import ask_status, beat, extracting, freeze_in_mid_write, thread_states

if TYPE_CHECKING:
    from tests.faults.fake import Fake
    from tests.faults.lab import Fuse

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "status.schema.json").read_text())
WATCHED_EVENTS = ("open", "import", "os.listdir", "os.scandir", "os.mkdir", "os.rename")
AUDITED = """
import os, sys
out = os.open({record!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
started = False
def hook(event, arguments):
    global started
    if event == "subprocess.Popen" and "extraction.worker" in arguments[1]:
        started = True
    elif started and event in {events!r}:
        os.write(out, f"{{event}} {{arguments[0]}}\\n".encode())
sys.addaudithook(hook)
from hsstore.cli import main
main()
"""
"""A whole run whose supervisor notes what it opens and imports once the worker has started."""


def test_a_frozen_disk_is_named_while_it_lasts_and_the_run_goes_on_with_the_thaw(
    disk: Path, fake: Fake, data: Path
) -> None:
    store = disk / "store.zarr"
    arguments = ("--data", data, "--stall-after", "3", "--metrics-port", "0")
    fake.hold()
    with extracting(store, fake, *arguments) as run:
        freeze_in_mid_write(fake, disk)
        said = run.wait_said("a kill would cost")
        wait_until(lambda: blocked_seconds(ask_status(store)) > 2)
        live = ask_status(store)
        text = subprocess.run(
            [sys.executable, "-m", "hsstore", "status", store],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        metrics = _scrape(said)
        thaw(disk)
        run.wait_said("recovered after ")
        code = run.wait()
    after = ask_status(store)

    jsonschema.validate(live, SCHEMA)  # type: ignore[no-untyped-call]
    report = said[said.index("stalled: no progress for") :]
    assert ": output-blocked: the output file system does not answer" in report.splitlines()[0]
    assert 3 <= int(report.split()[4]) <= 60
    assert str(store) in report
    assert f"{disk} (ext4" in report
    (seen,) = live["runs"]
    assert (seen["source"], seen["phase"]) == ("live", "extracting")
    assert seen["stall"]["verdict"] == "output-blocked"
    assert not seen["stall"]["recovered"]
    blocked = [stage for stage in seen["stages"] if stage["name"].startswith("disk:")]
    assert blocked[0]["detail"].startswith(str(store))
    assert blocked[0]["detail"] in text
    assert 'hsstore_stalled{verdict="output-blocked"} 1.0' in metrics
    assert "hsstore_stall_reports_total 0.0" not in metrics
    assert "hsstore_stall_reports_total" in metrics
    assert code == 0, run.log()
    verify(store, SAMPLES)
    (ended,) = after["runs"]
    assert (ended["source"], ended["exit_code"], ended["run"]) == ("copy", 0, seen["run"])
    assert ended["stall"]["recovered"]
    copy = (store.with_name("store.zarr.runs") / f"{seen['run']}.log").read_text()
    assert "output-blocked" in copy
    assert f"complete: all {SAMPLES} samples" in copy


def blocked_seconds(status: dict[str, Any]) -> float:
    """Return for how long a call into the file system has not returned."""
    (run,) = status["runs"]
    ages = [s["oldest_age_seconds"] for s in run["stages"] if s["name"].startswith("disk:")]
    return max(ages, default=0.0)


def _scrape(said: str) -> str:
    url = said.split("metrics on ")[1].split(maxsplit=1)[0]
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def test_the_command_returns_though_everything_it_has_lies_on_the_frozen_disk(
    disk: Path, fake: Fake, data: Path, place: Path
) -> None:
    """Standard error and the working directory too; its standard output is read to the end."""
    store, record = disk / "store.zarr", place / "opened"
    program = AUDITED.format(record=str(record), events=WATCHED_EVENTS)
    work = disk / "work"
    work.mkdir()
    fake.hold()
    with extracting(
        store,
        fake,
        *("--data", data, "--stall-after", "2", "--stall-abort", "5", "--metrics-port", "0"),
        log=disk / "log",
        cwd=work,
        program=("-c", program),
        stdout=subprocess.PIPE,
    ) as run:
        freeze_in_mid_write(fake, disk)
        output, _ = run.process.communicate(timeout=90)
        code = run.process.returncode
        status = run.status()
        assert status is not None
        states = thread_states(status.worker_pid)
        seen = ask_status(store)
        thaw(disk)
        wait_until(lambda: not thread_states(status.worker_pid) - {"Z"})
        log = run.log()
    with extracting(store, fake) as again:
        code_again = again.wait()

    assert (code, output) == (75, b""), log
    assert "D" in states
    (dead,) = seen["runs"]
    assert dead["source"] == "dead"
    assert dead["stall"]["aborted"]
    assert dead["stall"]["verdict"] == "output-blocked"
    assert "(--stall-abort): the worker" in log
    opened = [line for line in record.read_text().splitlines() if not _is_memory(line)]
    assert opened == []
    assert code_again == 0, again.log()
    verify(store, SAMPLES)


def test_a_supervisor_on_a_terminal_opens_nothing_late_either(
    fake: Fake, data: Path, place: Path
) -> None:
    """What is shown holds letters that a library for terminals has tables for."""
    record = place / "opened"
    program = AUDITED.format(record=str(record), events=WATCHED_EVENTS)
    ours, its = pty.openpty()
    try:
        with extracting(
            place / "\u65e5\u672c.zarr",
            fake,
            *("--data", data),
            program=("-c", program),
            stderr=its,
        ) as run:
            shown = threading.Thread(target=_read_all, args=(ours, said := bytearray()))
            shown.start()
            code = run.wait()
    finally:
        os.close(its)
        shown.join()
        os.close(ours)

    assert code == 0, said.decode()
    assert "\u65e5\u672c.zarr" in said.decode()
    opened = [line for line in record.read_text().splitlines() if not _is_memory(line)]
    assert opened == []


def _read_all(terminal: int, into: bytearray) -> None:
    with suppress(OSError):  # nobody has the other side any more
        while text := os.read(terminal, 1 << 16):
            into += text


def test_a_write_that_hangs_is_told_and_ends_the_run_though_the_server_goes_on(
    disk: Path, fake: Fake, data: Path
) -> None:
    store, stop = disk / "store.zarr", threading.Event()
    beating = threading.Thread(target=beat, args=(fake, stop))
    arguments = ("--data", data, "--stall-after", "3", "--stall-abort", "8")
    fake.hold()
    with extracting(store, fake, *arguments) as run:
        freeze_in_mid_write(fake, disk)
        beating.start()
        try:
            code = run.wait()
        finally:
            stop.set()
            beating.join()
            thaw(disk)

    assert ": output-blocked: the output file system does not answer" in run.log()
    assert code == 75, run.log()


def _is_memory(line: str) -> bool:
    name = line.split(" ", 1)[1]
    return name.isdigit() or name.startswith(("/proc/", "/sys/", "/dev/shm/", "/dev/null"))


def test_where_even_looking_hangs_status_still_answers_and_the_run_still_ends(
    hanging: Fuse, fake: Fake, data: Path
) -> None:
    """A network file system that is gone: reads and stat wait too, and the process is in state S."""
    store = hanging.mount / "store.zarr"
    arguments = ("--data", data, "--stall-after", "3", "--stall-abort", "15")
    fake.hold()
    with extracting(store, fake, *arguments, cwd=hanging.mount) as run:
        fake.wait_for_requests(20)
        with hanging.set("hang"):
            fake.release()
            said = run.wait_said("a kill would cost")
            seen = ask_status(store)
            code = run.wait()

    assert ": output-blocked: " in said
    assert str(store) in said
    assert seen["runs"][0]["stall"]["verdict"] == "output-blocked"
    assert seen["unread"].startswith("no answer in 3 s: reading ")
    assert code == 75

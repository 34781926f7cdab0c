"""`hsstore status` without a run of this machine, and the copies that it reads then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from extraction.page import Page, allocate_page
from extraction.status import RunStatus, StageState, WatchStatus, run_directory
from extraction.watchdog.copies import KEPT_RUNS, Copies
from extraction.watchdog.pages import RunPages
from tests.extraction.processes import wait_until
from tests.watchdog.runs import ENVIRONMENT, ask_status

if TYPE_CHECKING:
    from pathlib import Path

RUN = "0123456789ab"
ELSEWHERE = RunStatus(
    run=RUN,
    phase="extracting",
    host="node7",
    samples=1000,
    complete=100,
    complete_now=400,
    tokens_pending=9000,
    tokens_now=3000,
    tokens_per_second_1min=20.0,
    tokens_per_second_15min=10.0,
    stages=(StageState(name="write", items=3, oldest_since_seconds=1.0, detail="hs-1"),),
    last_errors=("sample 7 failed",),
)
STALL = WatchStatus(
    verdict="output-blocked",
    since_seconds=1.0,
    reported_seconds=60.0,
    stalled_seconds=59.0,
    evidence=("a line",),
    advice="look",
    kill_cost="nothing",
)


def status(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command: list[str | Path] = [sys.executable, "-m", "hsstore", "status", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


def leave_copy(store: Path) -> None:
    """Leave what a run of another host copies, an hour ago."""
    runs = store.with_name(store.name + ".runs")
    runs.mkdir()
    then = ELSEWHERE.model_copy(update={"updated_seconds": time.time() - 3600})
    (runs / f"{RUN}.status.json").write_text(then.model_dump_json())
    os.utime(runs / f"{RUN}.status.json", (then.updated_seconds, then.updated_seconds))
    (runs / f"{RUN}.stall.json").write_text(STALL.model_dump_json())
    (runs / "fedcba987654.status.json").write_text('{"of": "another version"}')


def test_watching_as_json_prints_a_document_a_line_whatever_version_wrote_the_copies(
    place: Path,
) -> None:
    store = place / "store.zarr"
    leave_copy(store)
    stall = STALL.model_copy(update={"verdict": "of-another-version"})
    (store.with_name("store.zarr.runs") / f"{RUN}.stall.json").write_text(stall.model_dump_json())
    command: list[str | Path] = [
        *(sys.executable, "-m", "hsstore", "status", store, "--watch", "--json")
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as watching:
        assert watching.stdout is not None
        seen = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)

    assert watching.returncode == 0
    assert [one["runs"][0]["stall"]["verdict"] for one in seen] == 2 * ["of-another-version"]


def test_a_store_that_nobody_knows_is_wrong_input(place: Path) -> None:
    result = status(place / "none.zarr")

    assert result.returncode == 2
    assert "no run is known, and there is no store" in result.stderr
    assert list(place.iterdir()) == []


def test_a_run_of_another_host_is_shown_from_its_copy_with_its_age(place: Path) -> None:
    store = place / "store.zarr"
    leave_copy(store)

    (run,) = ask_status(store)["runs"]
    text = status(store).stdout

    assert (run["source"], run["host"], run["complete"], run["pending"]) == (
        "copy",
        "node7",
        500,
        500,
    )
    assert 3600 <= run["age_seconds"] < 4000
    assert run["eta_seconds"] == 600
    assert run["stall"]["verdict"] == "output-blocked"
    assert "in the copy beside the store, 1.0 h ago" in text
    assert "20 tokens/s over 1 min, 10 over 15 min" in text
    assert "sample 7 failed" in text
    assert "what to do: look" in text


def test_a_run_is_found_by_another_name_of_its_store(place: Path) -> None:
    store, other = place / "store.zarr", place / "link.zarr"
    store.mkdir()
    other.symlink_to(store)
    pages = RunPages.create(run_directory(), str(store))
    try:
        pages.status.write(ELSEWHERE.model_copy(update={"store": str(store)}))
        (run,) = ask_status(other)["runs"]
    finally:
        pages.remove()

    assert run["source"] == "live"


def test_watching_goes_on_until_it_is_interrupted(place: Path) -> None:
    store = place / "store.zarr"
    leave_copy(store)
    with (place / "out").open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "hsstore", "status", store, "--watch"],
            stdout=out,
            env=ENVIRONMENT | {"PYTHONUNBUFFERED": "1"},
        )
    try:
        wait_until(lambda: (place / "out").read_text().count("node7") > 1)
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    finally:
        process.kill()
        process.wait()

    assert code == 0


def copies_of(place: Path) -> tuple[Copies, Page, Page]:
    """Make the copier of a store, and the pages that it reads."""
    pages = []
    for name in ("run-x.status", "run-x.watch"):
        descriptor = os.open(place / name, os.O_RDWR | os.O_CREAT)
        allocate_page(descriptor)
        os.close(descriptor)
        pages.append(Page(place / name))
    return Copies(pages[0], pages[1], place / "store.zarr.runs"), pages[0], pages[1]


def test_nothing_is_copied_before_a_run_has_made_the_directory_and_no_log_is_lost(
    place: Path,
) -> None:
    copies, page, watch = copies_of(place)
    page.write(ELSEWHERE.model_dump_json().encode())
    copies.add_log(b"early\n")
    copies.copy(now=True)
    before = (place / "store.zarr.runs").exists()
    (place / "store.zarr.runs").mkdir()
    copies.add_log(b"late\n")
    watch.write(STALL.model_dump_json().encode())
    copies.copy()

    left = {path.name: path.read_text() for path in (place / "store.zarr.runs").iterdir()}
    assert not before
    assert left[f"{RUN}.log"] == "early\nlate\n"
    assert json.loads(left[f"{RUN}.status.json"])["host"] == "node7"
    assert json.loads(left[f"{RUN}.stall.json"])["verdict"] == "output-blocked"
    assert len(left) == 3


def test_copies_of_old_runs_are_removed_and_nothing_else_is(place: Path) -> None:
    """Those that are renewed are of living ones, and do not count."""
    copies, page, _ = copies_of(place)
    directory = place / "store.zarr.runs"
    (directory / "claims").mkdir(parents=True)
    (directory / "notes.log").touch()
    for number in range(100, 100 + KEPT_RUNS):
        (directory / f"{number:012x}.log").touch()
    for number in range(KEPT_RUNS + 5):
        page.write(
            ELSEWHERE.model_copy(update={"run": f"{number:012x}"}).model_dump_json().encode()
        )
        copies.copy(now=True)
        os.utime(directory / f"{number:012x}.status.json", (number, number))
        os.utime(directory / f"{number:012x}.log", (number, number))

    names = {path.name for path in directory.iterdir()}
    assert {"claims", "notes.log"} <= names
    # The last one has only aged since.
    assert len([name for name in names if name.endswith(".status.json")]) == KEPT_RUNS + 1
    assert f"{100:012x}.log" in names
    assert f"{KEPT_RUNS + 4:012x}.status.json" in names
    assert f"{0:012x}.status.json" not in names

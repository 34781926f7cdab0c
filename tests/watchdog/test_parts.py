"""The parts of the watchdog, one by one."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import extraction.pulse
import extraction.watchdog.stall
from extraction.page import Page
from extraction.pulse import CPU_SECONDS, Pulse, RateMeter
from extraction.spool import SpoolServer
from extraction.stages import StageTable
from extraction.status import RunStatus, StatusPage, watch_path
from extraction.watchdog.copies import Copies
from extraction.watchdog.pages import RunPages
from extraction.watchdog.pipes import HelperPipe
from extraction.watchdog.stall import StallClock
from hsstore.activity import operation, operations, tick
from hsstore.errors import OutputError, RefusedError
from tests.extraction.fake_model import fake_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STATUS = RunStatus(run="r", phase="extracting", progress_count=5)


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Give a clock that goes on only when it is told to."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time, process_time=lambda: 0.0)
    clock.thread_time = lambda: 0.0
    monkeypatch.setattr(extraction.watchdog.stall, "time", clock)
    monkeypatch.setattr(extraction.pulse, "time", clock)

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def look_for(
    clock: StallClock, wait: Callable[[float], None], seconds: float, status: RunStatus
) -> float:
    """Look often, as the supervisor does."""
    still = 0.0
    for _ in range(round(seconds / 0.2)):
        wait(0.2)
        still = clock.look(status)
    return still


def test_time_without_progress_adds_up_and_progress_ends_it(wait: Callable[[float], None]) -> None:
    clock = StallClock()
    clock.look(STATUS)

    assert look_for(clock, wait, 10, STATUS) == pytest.approx(10)
    assert look_for(clock, wait, 0.2, STATUS.model_copy(update={"progress_count": 6})) == 0


def test_time_in_which_nobody_looked_is_no_stall(wait: Callable[[float], None]) -> None:
    clock = StallClock()
    clock.look(STATUS)
    wait(3600)  # stopped, or the machine slept

    assert clock.look(STATUS) == 1.0


def test_the_times_on_a_page_do_not_matter(wait: Callable[[float], None]) -> None:
    """Clocks jump; what was done is counted."""
    clock = StallClock()
    clock.look(STATUS)
    jumped = STATUS.model_copy(update={"progress_seconds": 1e9, "updated_seconds": 1e9})

    assert look_for(clock, wait, 10, jumped) == pytest.approx(10)


def test_one_operation_that_does_not_return_is_a_stall_though_the_rest_goes_on(
    wait: Callable[[float], None],
) -> None:
    clock = StallClock()
    still = 0.0
    for count in range(50):
        wait(0.2)
        still = clock.look(
            STATUS.model_copy(update={"progress_count": count, "oldest_operation": 7})
        )

    assert still == pytest.approx(9.8)
    assert clock.look(STATUS.model_copy(update={"progress_count": 99, "oldest_operation": 8})) == 0


def test_a_worker_that_is_loaded_makes_progress_while_it_computes(
    wait: Callable[[float], None],
) -> None:
    clock = StallClock()
    loading = RunStatus(run="", worker_pid=os.getpid())  # this process: it runs

    assert look_for(clock, wait, 5, loading) == 0


def test_rates_are_over_the_window_that_is_asked_for(wait: Callable[[float], None]) -> None:
    meter = RateMeter()
    count = 0
    for second in range(1200):
        meter.add(count)
        count += 100 if second < 1100 else 10
        wait(1)

    assert meter.per_second(60) == pytest.approx(10)
    assert meter.per_second(900) == pytest.approx((800 * 100 + 100 * 10) / 900, rel=0.01)


def test_a_counter_and_a_tick_are_progress_and_computing_only_where_it_counts(
    tmp_path: Path, wait: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse = Pulse(tmp_path / "no spool")
    pulse.look(1, computing_counts=False)
    seen = [pulse.progress_count]
    for counters, ticks in ((1, 0), (2, 0), (2, 1), (2, 0)):
        for _ in range(ticks):
            tick()
        pulse.look(counters, computing_counts=False)
        seen.append(pulse.progress_count)
    monkeypatch.setattr("extraction.pulse.time.process_time", lambda: 1.0)
    pulse.look(2, computing_counts=False)
    before = pulse.progress_count
    pulse.look(2, computing_counts=True)

    assert seen == [1, 1, 2, 3, 3]
    assert (before, pulse.progress_count) == (3, 4)


def test_looking_itself_is_no_progress_however_long_it_goes_on(tmp_path: Path) -> None:
    """While data is read from a disk that hangs, only the loop that looks computes."""
    pulse = Pulse(tmp_path / "no spool")
    pulse.look(1, computing_counts=True)
    before, began = pulse.progress_count, time.thread_time()
    while time.thread_time() - began < 1.5 * CPU_SECONDS:
        pulse.look(1, computing_counts=True)

    assert pulse.progress_count == before


def test_a_server_that_computes_and_captures_nothing_makes_no_progress(tmp_path: Path) -> None:
    with SpoolServer(tmp_path / "spool") as server:
        server.announce(fake_info(server, ""))
        pulse = Pulse(server.directory.path)
        counts = []
        for forwards, beating_counts in ((1, True), (2, True), (3, False), (4, False), (5, True)):
            server.beat(forwards=forwards, queue_depth=0)
            pulse.look(0, computing_counts=False, beating_counts=beating_counts)
            counts.append(pulse.progress_count)

    before = counts[1]
    assert [count - before for count in counts[1:]] == [0, 0, 0, 1]
    assert pulse.heartbeat_seconds > 0


def test_an_operation_is_shown_while_it_lasts_and_the_inner_one_first(tmp_path: Path) -> None:
    with operation("write", tmp_path / "a"):
        with operation("fsync", tmp_path / "a"):
            inner = [one.kind for one in operations()]
        outer = [one.kind for one in operations()]
    with pytest.raises(FileNotFoundError), operation("read", tmp_path / "none"):
        (tmp_path / "none").read_bytes()

    assert (inner, outer) == (["fsync"], ["write"])
    assert operations() == []


def test_the_stage_table_names_the_oldest_item_of_each_stage() -> None:
    table = StageTable()
    table.enter("write", "first")
    table.enter("write", "second")
    with table.at("request", "third"):
        during = table.states()
    table.leave("write", "first")
    table.leave("write", "never there")

    assert [(one.name, one.items, one.detail) for one in during] == [
        ("request", 1, "third"),
        ("write", 2, "first"),
    ]
    assert [(one.name, one.items, one.detail) for one in table.states()] == [("write", 1, "second")]


def test_a_process_that_stands_still_never_makes_us_wait() -> None:
    pipe = HelperPipe([sys.executable, "-c", "import time; time.sleep(600)"], quiet=True)
    try:
        for _ in range(40):
            pipe.write("x" * 100_000)
        pipe.end()
        gone = pipe.wait(0.1)
    finally:
        os.kill(pipe._process.pid, signal.SIGKILL)
        pipe._process.wait()
        pipe.close()

    assert not gone
    assert pipe.dropped_bytes > 2_000_000


def test_a_reader_that_is_gone_is_no_error() -> None:
    pipe = HelperPipe([sys.executable, "-c", "pass"], quiet=True)
    pipe._process.wait()

    pipe.write("nobody reads this")
    pipe.end()

    assert pipe.wait(5)
    pipe.close()


def test_pages_of_dead_runs_stay_until_their_store_is_worked_on_again(tmp_path: Path) -> None:
    for store in ("a", "b"):
        pages = RunPages.create(tmp_path, store)
        pages.status.write(RunStatus(run="r", store=store))
        pages.status.unlock()  # as its death does

    again = RunPages.create(tmp_path, "a")
    left = sorted(StatusPage(path).path for path in tmp_path.glob("*.status"))

    assert len(left) == 2
    assert again.status.path in left
    assert {watch_path(path) for path in left} == set(tmp_path.glob("*.watch"))
    again.remove()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.fixture
def no_room() -> Iterator[None]:
    """Let no file have a byte, as on a file system that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("no_room")
def test_without_room_for_its_pages_a_run_says_so_and_leaves_none(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no room for the run's status in shared memory"):
        RunPages.create(tmp_path, "a")

    assert list(tmp_path.iterdir()) == []


def test_a_log_that_the_disk_does_not_take_is_kept_and_leaves_no_rubbish(tmp_path: Path) -> None:
    pages = RunPages.create(tmp_path / "shm", "a")
    pages.status.write(RunStatus(run="0123456789ab", store="a"))
    (tmp_path / "runs").mkdir()
    copies = Copies(Page(pages.status.path), pages.watch, tmp_path / "runs")
    log = tmp_path / "runs" / "0123456789ab.log"
    copies.add_log(b"first\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, limits[1]))
    try:
        copies.copy(now=True)
        with pytest.raises(OSError, match="large"):
            copies._replace("x.status.json", b"much more than fits")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    half = log.read_bytes()
    copies.copy(now=True)
    pages.remove()

    assert half == b"fir"
    assert log.read_bytes() == b"first\n"
    assert [path.name for path in log.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "hsstore-0"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)

    with pytest.raises(RefusedError, match="belongs to user 65534"):
        RunPages.create(theirs, "a")

    assert list(theirs.iterdir()) == []


def test_words_reach_standard_error_though_a_scheduler_signals_every_process(
    tmp_path: Path,
) -> None:
    program = (
        "import os, signal; from extraction.watchdog.pipes import open_relay;"
        "relay = open_relay(); relay.write('first\\n'); input();"
        "os.kill(relay._process.pid, signal.SIGTERM); relay.write('last\\n'); relay.end();"
        "assert relay.wait(30)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        first = process.stderr.readline()  # it is there, and writes
        _, last = process.communicate(b"\n")

    assert (first, last, process.returncode) == (b"first\n", b"last\n", 0)

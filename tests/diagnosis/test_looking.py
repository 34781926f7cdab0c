"""What is read of real processes, stacks, mounts and children that hang."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from extraction.diagnosis.child import Child
from extraction.diagnosis.collect import look_at_spool
from extraction.diagnosis.find import find_pages
from extraction.diagnosis.mounts import mount_of, read_mounts
from extraction.diagnosis.probe import ask_for_health, look_at_output, try_to_write
from extraction.diagnosis.processes import has_open, is_there, look_at_process, parent_of
from extraction.diagnosis.stacks import is_idle, parse_stacks, read_stacks
from extraction.status import RunStatus, StatusPage
from hsstore.liveness import Beat
from hsstore.run_record import begin_record
from hsstore.spec import ServerRecord
from hsstore.testing.stores import make_store
from tests.extraction.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def child(program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that prints a line when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, stdin=subprocess.PIPE
    )
    with process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def soon(deadline_seconds: float = 20.0) -> float:
    return time.monotonic() + deadline_seconds


def test_a_thread_in_a_read_is_seen_with_its_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with child(
        f"import os; fd = os.open({str(fifo)!r}, os.O_RDWR); print(flush=True); os.read(fd, 1)"
    ) as process:
        wait_until(lambda: look_at_process(process.pid, "worker").threads[0].syscall == "read")
        (thread,) = look_at_process(process.pid, "worker").threads

        assert parent_of(process.pid) == os.getpid()
        assert has_open(process.pid, str(fifo))
        assert not has_open(process.pid, str(fifo) + "2")
    assert (thread.state, thread.syscall, thread.file) == ("S", "read", str(fifo))
    assert thread.mount is not None
    assert not look_at_process(process.pid, "worker").alive


def test_a_loop_uses_the_processor_and_a_wait_does_not() -> None:
    program = """
import threading, time
threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
print(flush=True)
while True: pass
"""
    with child(program) as process:
        threads = look_at_process(process.pid, "worker", sample_seconds=2.0).threads

    busy, waiting = sorted(threads, key=lambda thread: -thread.cpu_share)
    assert busy.tid == process.pid
    assert busy.cpu_share > 0
    assert waiting.cpu_share == 0


def test_a_stopped_process_and_a_zombie_are_told_apart() -> None:
    with child("print(flush=True); import time; time.sleep(99)") as process:
        process.send_signal(signal.SIGSTOP)
        while not (seen := look_at_process(process.pid, "worker")).stopped:
            time.sleep(0.01)
        process.kill()
        while (dead := look_at_process(process.pid, "worker")).alive:
            time.sleep(0.01)

    assert seen.alive
    assert [thread.state for thread in dead.threads] in (["Z"], [])
    assert not dead.killed


def test_stacks_come_from_a_process_that_hangs_in_a_lock(tmp_path: Path) -> None:
    file = tmp_path / "run.stacks"
    file.touch()
    program = f"""
import faulthandler, signal, threading
file = open({str(file)!r}, "a")
faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
lock = threading.Lock()
def wait_forever():
    lock.acquire()
    lock.acquire()
threading.Thread(target=wait_forever, daemon=True).start()
print(flush=True)
wait_forever()
"""
    with child(program) as process:
        first, problem = read_stacks(process.pid, str(file), patience_seconds=10)
        second = first
        for _ in range(100):  # the main thread may still be on its way
            second, problem = read_stacks(process.pid, str(file), patience_seconds=10)
            if all("wait_forever" in stack.frames[0] for stack in second):
                break

    assert problem == ""
    assert len(first) == len(second) == 2
    assert all("wait_forever" in stack.frames[0] for stack in second)


def test_stacks_that_are_not_offered_send_no_signal(tmp_path: Path) -> None:
    stacks, problem = read_stacks(os.getpid(), str(tmp_path / "none"))

    assert stacks == ()
    assert "not offered" in problem


def count_idle() -> int:
    """Count the idle threads of this process."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return sum(map(is_idle, parse_stacks(file.read().decode().splitlines())))


def test_an_idle_thread_of_a_pool_is_known_by_its_frame() -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    before = count_idle()  # other tests of this process may have left pools of their own
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        wait_until(lambda: count_idle() == before + 1)


def test_the_thread_that_beats_for_the_claims_is_idle(tmp_path: Path) -> None:
    before = count_idle()
    beat = Beat(partial(os.utime, tmp_path / "run.lock"))
    try:
        wait_until(lambda: count_idle() == before + 1)
    finally:
        beat.end()


def test_a_mount_is_found_by_spelling_also_where_it_does_not_exist() -> None:
    mounts = read_mounts()
    shm = mount_of("/dev/shm/there/is/nothing", mounts)

    assert shm is not None
    assert (shm.point, shm.kind) == ("/dev/shm", "tmpfs")


# --- children -----------------------------------------------------------------------------------


def test_an_answer_that_is_there_counts_though_its_deadline_has_passed() -> None:
    child = Child(lambda _tell: {"x": 1})
    wait_until(lambda: not is_there(child._pid), 60)

    answer = child.wait(time.monotonic() - 1)

    assert (answer.answered, answer.result) == (True, {"x": 1})


def test_a_child_that_hangs_is_left_at_its_deadline_with_its_last_step(tmp_path: Path) -> None:
    def hang(tell: object) -> None:
        tell("counting sheep")  # type: ignore[operator]
        (tmp_path / "told").touch()
        threading.Event().wait()

    began = time.monotonic()
    child = Child(hang)
    wait_until((tmp_path / "told").exists)
    answer = child.wait(soon(0.3))

    assert not answer.answered
    assert answer.last_step == "counting sheep"
    assert time.monotonic() - began < 60


def test_a_child_that_hangs_keeps_no_pipe_of_its_parent_open() -> None:
    program = """
import threading, time
from extraction.diagnosis.child import Child
child = Child(lambda tell: threading.Event().wait(60))
print("done", flush=True)
import os; os._exit(0)
"""
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )

    assert ended.stdout == "done\n"
    assert time.monotonic() - began < 50


def test_what_a_child_raises_is_said() -> None:
    answer = Child(lambda tell: 1 // 0).wait(soon())

    assert answer.answered
    assert answer.error == "ZeroDivisionError: integer division or modulo by zero"


def test_a_store_is_looked_at_and_a_write_leaves_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", [3, 9, 40])
    before = sorted(tmp_path.rglob("*"))

    found = look_at_output(store.path, str)
    written = try_to_write(str(store.path), str)

    assert (found["samples"], found["complete"], found["failed"]) == (3, 0, 0)
    assert found["real"] == str(store.path.resolve())
    assert found["free_bytes"] > 0
    assert written == {} or "untried" in written
    assert sorted(tmp_path.rglob("*")) == before


def test_of_a_dead_run_the_server_is_looked_at_that_was_asked(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", [3])
    servers = tuple(
        ServerRecord(
            url=f"http://{name}", spool=f"/{name}", instance=None, engine_version=None, flags={},
            tokens=tokens, canary=None, message="",
        )
        for name, tokens in (("dropped", 0), ("asked", 9))
    )  # fmt: skip
    record = begin_record("r", "f" * 64, "sglang", {}).model_copy(update={"servers": servers})
    store.record_run(record)

    found = look_at_output(store.path, str)

    assert (found["server"], found["spool"]) == ("http://asked", "/asked")


@pytest.mark.parametrize("damage", ["{}", "not json", '{"zarr_format": 3, "node_type": "group"}'])
def test_a_store_that_cannot_be_read_is_said(tmp_path: Path, damage: str) -> None:
    store = make_store(tmp_path / "s.zarr", [3, 9, 40])
    (store.path / "zarr.json").write_text(damage)

    assert look_at_output(store.path, str)["unreadable_plan"]


def test_a_port_where_nobody_listens_refuses() -> None:
    assert ask_for_health("http://127.0.0.1:1", 5, str)["health"] == "refused"


def test_a_spool_that_is_not_there_is_said(tmp_path: Path) -> None:
    assert look_at_spool(str(tmp_path / "none")).missing


def test_a_run_is_found_by_its_store_and_a_live_one_first(tmp_path: Path) -> None:
    directory = tmp_path / "hsstore-1"
    dead = StatusPage.create(directory, "/x/other")
    dead.write(RunStatus(run="dead", store="/x/s.zarr", updated_seconds=2.0))
    dead.unlock()
    live = StatusPage.create(directory, "/x/another")
    live.write(RunStatus(run="live", store="/x/s.zarr", updated_seconds=1.0))

    pages = find_pages(tmp_path)
    found = pages.of("/x/s.zarr")

    assert [(page.status.run, page.held) for page in found] == [("live", True), ("dead", False)]
    assert pages.of("/x") == ()
    live.remove()
    dead.remove()

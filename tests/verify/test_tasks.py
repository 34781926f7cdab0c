"""Tasks on threads, on processes of this machine, and on a real cluster of which parts die."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from threading import Event, active_count
from typing import TYPE_CHECKING, overload

import pytest
from typing_extensions import override

from hsstore.errors import InputError, InterruptedRunError
from hsstore.tasks import Where, run_tasks
from tests.verify.cluster import dask_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.verify.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Give a cluster of two workers. Not to be harmed."""
    with dask_cluster() as running:
        yield running


def square(number: int) -> int:
    return number * number


def fail_on_three(number: int) -> int:
    if number == 3:
        raise InputError("three is not allowed")
    return number


def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def test_every_task_is_done_once_and_its_result_has_its_index() -> None:
    results = dict(run_tasks(square, range(100), Where(workers=3)))

    assert results == {number: number * number for number in range(100)}


def test_no_task_is_no_result() -> None:
    assert list(run_tasks(square, [], Where())) == []


@pytest.mark.parametrize("where", [Where(workers=2), Where(processes=1)])
def test_what_a_task_raises_is_raised_as_it_is(where: Where) -> None:
    with pytest.raises(InputError, match=r"^three is not allowed$"):
        list(run_tasks(fail_on_three, range(6), where))


class _Made(Sequence[bytes]):
    """A million large tasks that exist only while they are needed."""

    def __init__(self, count: int, size: int) -> None:
        self.taken = 0
        self._count, self._size = count, size

    @override
    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    @override
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        assert isinstance(index, int)
        self.taken += 1
        return bytes(self._size)


def test_tasks_and_results_in_memory_are_few_though_nobody_takes_them() -> None:
    tasks = _Made(2000, 1 << 20)
    tracemalloc.start()
    results = run_tasks(bytes, tasks, Where(workers=2))

    next(results)
    time.sleep(0.3)
    taken = tasks.taken
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    results.close()

    assert taken <= 1 + 3 * 2
    assert peak < 20 << 20


def test_giving_up_early_ends_every_thread() -> None:
    before, started = active_count(), Event()

    def work(number: int) -> int:
        started.set()
        return number

    results = run_tasks(work, range(1000), Where(workers=2))
    next(results)
    results.close()

    assert started.is_set()
    assert active_count() == before


def test_processes_of_this_machine_are_used_and_end(tmp_path: Path) -> None:
    pids = {pid for _, pid in run_tasks(pid_after, [0.2] * 8, Where(processes=2))}

    assert len(pids) == 2
    assert os.getpid() not in pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_cluster_that_is_there_does_the_tasks(cluster: Cluster) -> None:
    where = Where(scheduler=cluster.address)

    results = dict(run_tasks(square, range(50), where))

    assert results == {number: number * number for number in range(50)}


def test_tasks_of_a_lost_worker_are_done_by_the_others() -> None:
    with dask_cluster() as running:
        results = run_tasks(pid_after, [0.2] * 20, Where(scheduler=running.address))
        found = [next(results) for _ in range(4)]
        running.kill("worker-0")
        found += results

    assert sorted(index for index, _ in found) == list(range(20))
    assert len({pid for _, pid in found}) == 2


def test_a_cluster_that_is_lost_whole_ends_the_run_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hsstore.tasks.CONNECT_SECONDS", 3)
    with dask_cluster() as running:
        results = run_tasks(pid_after, [0.2] * 20, Where(scheduler=running.address))
        next(results)
        running.stop()

        with pytest.raises(InterruptedRunError, match=r"cluster tcp://\S+ is lost .*run again"):
            list(results)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere", "what://is:3", "tcp://1:x"])
def test_an_address_where_no_scheduler_answers_is_wrong_input(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsstore.tasks.CONNECT_SECONDS", 0.5)

    with pytest.raises(
        InputError, match=f"no Dask scheduler answers at {address} .*dask scheduler"
    ):
        list(run_tasks(square, [1], Where(scheduler=address)))


@pytest.mark.parametrize("address", ["nowhere", ""])
def test_an_address_that_cannot_be_read_ends_the_command_at_once_with_one_reason(
    address: str,
) -> None:
    program = (
        "import sys, hsstore.tasks as tasks;"
        "list(tasks.run_tasks(abs, [1], tasks.Where(scheduler=sys.argv[1])))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, address], capture_output=True, text=True, check=False
    )

    assert "InputError: no Dask scheduler answers at" in done.stderr
    assert "Exception ignored" not in done.stderr


def test_something_that_listens_and_never_answers_is_wrong_input_and_the_command_ends() -> None:
    program = (
        "import sys, hsstore.tasks as tasks; tasks.CONNECT_SECONDS = 1;"
        "list(tasks.run_tasks(abs, [1], tasks.Where(scheduler=sys.argv[1])))"
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        ended = subprocess.run(
            [sys.executable, "-c", program, address],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert ended.returncode == 1
    assert f"InputError: no Dask scheduler answers at {address}" in ended.stderr


def test_a_scheduler_without_workers_is_wrong_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsstore.tasks.WORKERS_SECONDS", 1)

    with (
        dask_cluster(workers=0) as running,
        pytest.raises(InputError, match="has had no worker for 1 s: start some with `dask worker"),
    ):
        list(run_tasks(square, [1], Where(scheduler=running.address)))


def test_another_version_on_the_workers_is_refused_by_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsstore.tasks._version_here", lambda: "99.9")

    with pytest.raises(
        InputError, match=r"tcp://\S+ has hsstore \S+, and this is hsstore 99.9: in"
    ):
        list(run_tasks(square, [1], Where(scheduler=cluster.address)))


def test_a_file_that_the_workers_do_not_see_is_named(cluster: Cluster, tmp_path: Path) -> None:
    here = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/comm")  # another process sees it as well
    mine = Path("/proc/self/stat")  # everyone sees another one

    assert list(run_tasks(square, [2], Where(scheduler=cluster.address), files=[here])) == [(0, 4)]
    with pytest.raises(InputError, match="a Dask worker sees another file as /proc/self/stat: put"):
        list(run_tasks(square, [2], Where(scheduler=cluster.address), files=[mine]))


def test_a_cluster_and_processes_of_our_own_exclude_each_other() -> None:
    with pytest.raises(InputError, match="leave --processes and --workers away"):
        run_tasks(square, [1], Where(scheduler="tcp://a:1", processes=2))


def test_without_distributed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(InputError, match=r"pip install 'hsstore\[distributed\]'"):
        list(run_tasks(square, [1], Where(processes=1)))

"""A server that computes in several processes: one owns the spool, the others attach to it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from extraction.spool import (
    AttachedServer,
    ClientInfo,
    ErrorReason,
    NoServerError,
    PutState,
    RequestId,
    ServerInfo,
    SpoolClient,
    SpoolServer,
    SpoolView,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INSTANCE = str(uuid.UUID(int=7))

RANK = """
import pathlib, sys, time
import numpy as np
from dataclasses import replace
from extraction.spool import AttachedServer, RequestId, ServerInfo, SpoolServer

path, instance, rank, ranks = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
info = ServerInfo.from_json(pathlib.Path(sys.argv[5]).read_bytes())
if rank == 0:
    spool = SpoolServer(path, instance=instance)
    spool.wait_for_attached(ranks - 1, 60)
    spool.announce(replace(info, instance=instance))
else:
    spool = AttachedServer(path, instance, rank, timeout_seconds=60)
    spool.join()
print("ready", flush=True)
forwards = 0
for line in sys.stdin:
    rid = RequestId.parse(line.strip())
    hidden = np.full((rid.rows, 3, 6), 100 + rank, np.uint16)
    state = spool.put(str(rid), 0, hidden, np.arange(rid.rows, dtype=np.int32))
    forwards += 1
    spool.beat(forwards=forwards, queue_depth=rank)
    print(state.name, flush=True)
"""


class _Rank:
    """A process of a server."""

    def __init__(self, path: Path, info_file: Path, rank: int, ranks: int) -> None:
        command: list[str | Path] = [
            sys.executable,
            "-c",
            RANK,
            path,
            INSTANCE,
            str(rank),
            str(ranks),
            info_file,
        ]
        pipe = subprocess.PIPE
        self.process: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def compute(self, rid: RequestId) -> str:
        assert self.process.stdin is not None
        print(rid, file=self.process.stdin, flush=True)
        return self.line()

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def info_file(tmp_path: Path, info: ServerInfo) -> Path:
    path = tmp_path / "info.json"
    path.write_bytes(info.to_json())
    return path


@pytest.fixture
def ranks(spool_path: Path, info_file: Path) -> Iterator[list[_Rank]]:
    """Three processes, started in the wrong order."""
    processes = {rank: _Rank(spool_path, info_file, rank, 3) for rank in (2, 1, 0)}
    try:
        for rank in range(3):
            assert processes[rank].line() == "ready"
        yield [processes[rank] for rank in range(3)]
    finally:
        for process in processes.values():
            process.end()


def test_each_process_writes_its_own_requests_and_the_client_sees_one_server(
    spool_path: Path, ranks: list[_Rank]
) -> None:
    with SpoolClient(spool_path, ClientInfo("ab", "store-uuid")) as client:
        assert client.wait_for_server(0).instance == INSTANCE
        rids = [RequestId("ab", sample, 0, 10 + sample) for sample in range(9)]

        seen = [ranks[rid.sample % 3].compute(rid) for rid in rids]

        assert seen == ["FINISHED"] * 9
        for rid in rids:
            with client.open_dump(rid) as dump:
                assert dump.metadata.instance == INSTANCE
                assert dump.metadata.capture_hash == "c" * 64
                assert np.unique(dump.hidden).tolist() == [100 + rid.sample % 3]
            client.discard(rid)
        heartbeat = client.heartbeat()
        assert heartbeat is not None
        assert heartbeat.forwards == 9
        assert heartbeat.rows == sum(rid.rows for rid in rids)
        assert heartbeat.queue_depth == 0 + 1 + 2
        assert client.scan().foreign == []


def test_an_attached_process_that_died_is_missed_by_nobody_and_its_leftovers_go_at_the_next_start(
    spool_path: Path, ranks: list[_Rank]
) -> None:
    with SpoolClient(spool_path, ClientInfo("ab", "store-uuid")) as client:
        ranks[1].end()
        assert ranks[0].compute(RequestId("ab", 0, 0, 10)) == "FINISHED"
        assert ranks[2].compute(RequestId("ab", 1, 0, 10)) == "FINISHED"
        for rank in (ranks[0], ranks[2]):
            rank.end()
        assert not client.server_alive()

        with SpoolServer(spool_path) as server:
            removed = [name for name in server.removed if name.startswith("heartbeat-")]
            assert removed == [f"heartbeat-1-{INSTANCE}", f"heartbeat-2-{INSTANCE}"]
            assert server.attached() == frozenset()
        client.cleanup("ab")
        assert not client.scan().finished


def test_the_server_is_announced_only_when_all_its_processes_capture(
    spool_path: Path, info_file: Path
) -> None:
    owner = _Rank(spool_path, info_file, 0, 2)
    try:
        view = _wait_for_view(spool_path)
        time.sleep(0.5)
        with pytest.raises(NoServerError, match="still loading"):
            view.wait_for_server(0)

        late = _Rank(spool_path, info_file, 1, 2)
        try:
            assert (owner.line(), late.line()) == ("ready", "ready")
            assert view.wait_for_server(0).instance == INSTANCE
        finally:
            late.end()
    finally:
        owner.end()


def test_an_owner_whose_processes_do_not_come_says_which(spool_path: Path) -> None:
    with (
        SpoolServer(spool_path, instance=INSTANCE) as server,
        AttachedServer(spool_path, INSTANCE, 2, timeout_seconds=0) as second,
    ):
        second.join()
        with pytest.raises(NoServerError, match=r"3 further processes.* \[1, 3\]"):
            server.wait_for_attached(3, 0)


@pytest.mark.parametrize("other", [True, False])
def test_a_process_of_another_start_does_not_attach(spool_path: Path, *, other: bool) -> None:
    if not other:
        with pytest.raises(NoServerError, match="nobody"):
            AttachedServer(spool_path, INSTANCE, 1, timeout_seconds=0)
        return
    with SpoolServer(spool_path) as server, pytest.raises(NoServerError, match=server.instance):
        AttachedServer(spool_path, INSTANCE, 1, timeout_seconds=0)


def test_rows_before_the_owner_announced_fail_and_those_after_it_do_not(
    spool_path: Path, info: ServerInfo, states: Any
) -> None:

    with (
        SpoolServer(spool_path, instance=INSTANCE) as server,
        AttachedServer(spool_path, INSTANCE, 1, timeout_seconds=0) as attached,
        SpoolClient(spool_path, ClientInfo("ab", "s")) as client,
    ):
        early, late = RequestId("ab", 0, 0, 10), RequestId("ab", 0, 1, 10)
        assert attached.put(str(early), 0, *states(10)) is PutState.FAILED
        assert client.take_error(early).reason == ErrorReason.ENGINE

        server.announce(replace(info, instance=INSTANCE))

        assert attached.put(str(late), 0, *states(10)) is PutState.FINISHED


def test_a_request_that_two_processes_compute_at_once_keeps_one_writer(
    spool_path: Path, info: ServerInfo, states: Any
) -> None:
    with (
        SpoolServer(spool_path, instance=INSTANCE) as server,
        AttachedServer(spool_path, INSTANCE, 1, timeout_seconds=0) as attached,
        SpoolClient(spool_path, ClientInfo("ab", "s")) as client,
    ):
        server.announce(replace(info, instance=INSTANCE))
        rid = RequestId("ab", 0, 0, 10)
        hidden, input_ids = states(10)
        assert server.put(str(rid), 0, hidden[:5], input_ids[:5]) is PutState.PARTIAL

        assert attached.put(str(rid), 0, np.zeros_like(hidden), input_ids) is PutState.FAILED

        assert "twice at once" in client.take_error(rid).detail
        assert server.put(str(rid), 5, hidden[5:], input_ids[5:]) is PutState.FINISHED
        with client.open_dump(rid) as dump:
            assert np.array_equal(dump.hidden, hidden)


def test_all_processes_that_leave_leave_nothing(spool_path: Path) -> None:
    server = SpoolServer(spool_path, instance=INSTANCE)
    attached = AttachedServer(spool_path, INSTANCE, 1, timeout_seconds=0)
    attached.join()

    server.close()
    attached.close()

    assert not spool_path.exists()


def _wait_for_view(path: Path) -> SpoolView:
    deadline = time.monotonic() + 60
    while not (path / "server.lock").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return SpoolView(path)

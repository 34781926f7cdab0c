"""Server and client: who lives, who is refused, what is left behind and who removes it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from extraction.spool import (
    ClientInfo,
    DumpError,
    DumpInUseError,
    ErrorReason,
    NoServerError,
    PutState,
    RequestId,
    ServerInfo,
    SpoolBusyError,
    SpoolClient,
    SpoolServer,
    SpoolView,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    Capture = Callable[[SpoolServer, RequestId], npt.NDArray[np.uint16]]

HOLD_SERVER = """
import sys, time, pathlib
from extraction.spool import SpoolServer
server = SpoolServer(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""


def test_a_second_server_is_refused_and_told_who_holds_the_spool(server: SpoolServer) -> None:
    with pytest.raises(SpoolBusyError, match=server.instance):
        SpoolServer(server.directory.path)


def test_a_second_client_is_refused_and_told_who_holds_the_spool(client: SpoolClient) -> None:
    with pytest.raises(SpoolBusyError, match="0123456789ab"):
        SpoolClient(client.directory.path, ClientInfo("second", "store"))


def test_what_the_server_announces_is_what_the_client_reads(
    server: SpoolServer, client: SpoolClient, info: ServerInfo
) -> None:
    seen = client.wait_for_server(timeout_seconds=0)

    assert seen == info
    assert seen.slots == 3
    assert seen.norm is not None
    assert seen.norm.array().tolist() == [0, 1, 2, 3, 4, 5]


def test_a_loading_server_and_a_missing_one_are_told_apart(spool_path: Path) -> None:
    server = SpoolServer(spool_path)
    view = SpoolView(spool_path)

    with pytest.raises(NoServerError, match="still loading"):
        view.wait_for_server(timeout_seconds=0.1)
    (spool_path / "client.lock").touch()  # keeps the directory
    server.close()
    with pytest.raises(NoServerError, match="not running"):
        view.wait_for_server(timeout_seconds=0.1)


def test_a_server_of_another_protocol_version_is_refused(
    server: SpoolServer, client: SpoolClient, info: ServerInfo
) -> None:
    text = info.to_json().replace(b'"protocol": 1', b'"protocol": 2')
    (server.directory.path / "server.json").write_bytes(text)

    with pytest.raises(NoServerError, match="protocol 2, this side speaks 1"):
        client.wait_for_server(timeout_seconds=1)


@pytest.mark.parametrize("damage", ["layers", "norm", "model"])
def test_an_announcement_that_lacks_a_field_is_refused(info: ServerInfo, damage: str) -> None:
    text = info.to_json().replace(f'"{damage}"'.encode(), b'"x"')

    with pytest.raises(ValueError, match="incomplete"):
        ServerInfo.from_json(text)


@pytest.mark.parametrize(
    "change", [{"layers": (2, 0)}, {"layers": (0, 4)}, {"final": "maybe"}, {"dtype": "int8"}]
)
def test_an_announcement_that_contradicts_itself_is_refused(
    info: ServerInfo, change: dict[str, Any]
) -> None:
    fields = {name: getattr(info, name) for name in ServerInfo.__slots__}

    with pytest.raises(ValueError, match=r"layers|capture"):
        ServerInfo(**fields | change)


def test_a_killed_server_is_seen_as_dead_and_its_leftovers_are_replaced(
    spool_path: Path, info: ServerInfo, child: Any
) -> None:
    with child(HOLD_SERVER, str(spool_path)) as process:
        view = SpoolView(spool_path)
        assert view.server_alive()
        with pytest.raises(SpoolBusyError, match=str(process.pid)):
            SpoolServer(spool_path)
        (spool_path / "server.json").write_bytes(info.to_json())
        (spool_path / "hs-ab-0-0-5.part").touch()
        (spool_path / "hs-ab-1-0-5.safetensors").touch()
        assert view.server() == info

        process.send_signal(signal.SIGKILL)
        process.wait()

        assert not view.server_alive()
        assert view.server() is None
        with SpoolServer(spool_path) as server:
            assert server.removed == ("hs-ab-0-0-5.part", "server.json")
            assert view.server_alive()
            assert list(view.scan().finished) == [RequestId("ab", 1, 0, 5)]


def test_probing_a_lock_does_not_keep_a_server_from_starting(spool_path: Path, child: Any) -> None:
    with SpoolServer(spool_path):
        (spool_path / "client.lock").touch()  # keeps the directory
    probe = """
import sys, pathlib
from extraction.spool import SpoolView
view = SpoolView(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
while True: view.server_alive()
"""
    with child(probe, str(spool_path)), child(probe, str(spool_path)):
        for _ in range(20):
            SpoolServer(spool_path).close()


def test_the_heartbeat_shows_what_was_done(
    server: SpoolServer, client: SpoolClient, rid: RequestId, capture: Capture
) -> None:
    first = client.heartbeat()
    capture(server, rid)
    before_ns = time.monotonic_ns()

    server.beat(forwards=7, queue_depth=2)

    beat = client.heartbeat()
    assert first is not None
    assert beat is not None
    assert (first.forwards, first.rows) == (0, 0)
    assert (beat.forwards, beat.rows, beat.queue_depth) == (7, 10, 2)
    assert beat.monotonic_ns >= before_ns
    assert beat.free_bytes > 0


def test_no_heartbeat_without_a_server_or_from_something_else(
    server: SpoolServer, client: SpoolClient
) -> None:
    path = server.directory.path / "heartbeat"

    path.write_bytes(bytes(56))
    assert client.heartbeat() is None
    path.write_bytes(b"short")
    assert client.heartbeat() is None
    path.unlink()
    assert client.heartbeat() is None


def test_a_scan_tells_runs_states_and_foreign_names_apart(
    server: SpoolServer, client: SpoolClient, rid: RequestId, capture: Capture, states: Any
) -> None:
    capture(server, rid)
    server.put(str(RequestId(rid.run, 6, 0, 10)), 0, *states(5))
    server.fail(str(RequestId(rid.run, 7, 0, 10)), ErrorReason.OVERRUN, "too fast")
    for name in ("hs-dead-1-0-5.safetensors", "notes.txt", "hs-ab-1-0-5.bak", "x.error.tmp"):
        (server.directory.path / name).write_bytes(b"x")
    (server.directory.path / "free" / "not ours").write_bytes(bytes(10_000))

    scan = client.scan()

    assert [r.sample for r in scan.finished if r.run == rid.run] == [5]
    assert [r.run for r in scan.finished if r.run != rid.run] == ["dead"]
    assert [r.sample for r in scan.partial] == [6]
    assert [r.sample for r in scan.errors] == [7]
    assert sorted(scan.foreign) == ["hs-ab-1-0-5.bak", "notes.txt", "x.error.tmp"]
    assert scan.finished[rid].allocated_bytes >= 4096
    assert abs(scan.finished[rid].modified_seconds - time.time()) < 60
    assert scan.free_bytes == 0


def test_the_clients_own_files_go_and_foreign_ones_stay(
    server: SpoolServer, client: SpoolClient, rid: RequestId, capture: Capture
) -> None:
    capture(server, rid)
    other = RequestId(rid.run, 6, 0, 10)
    capture(server, other)
    client.give_back(other)
    server.fail(str(RequestId(rid.run, 7, 0, 10)), ErrorReason.ENGINE, "broken")
    foreign = {"notes.txt", "hs-dead-1-0-5.safetensors"}
    for name in foreign:
        (server.directory.path / name).touch()

    client.cleanup(rid.run)
    client.close()

    left = {path.name for path in server.directory.path.iterdir()}
    assert left == foreign | {"server.lock", "server.json", "heartbeat", "free"}
    assert not list((server.directory.path / "free").iterdir())


def test_a_client_that_only_leaves_keeps_dumps_for_salvage(
    server: SpoolServer, client: SpoolClient, rid: RequestId, capture: Capture
) -> None:
    hidden = capture(server, rid)

    client.close()

    with SpoolClient(server.directory.path, ClientInfo("nextrun", "store-uuid")) as other:
        assert list(other.scan().finished) == [rid]
        with other.open_dump(rid) as dump:
            assert dump.metadata.store == "store-uuid"
            assert np.array_equal(dump.hidden, hidden)


def test_an_open_dump_is_neither_given_back_nor_removed(
    server: SpoolServer, client: SpoolClient, rid: RequestId, capture: Capture
) -> None:
    capture(server, rid)
    dump = client.open_dump(rid)

    with pytest.raises(DumpInUseError):
        client.give_back(rid)
    with pytest.raises(DumpInUseError):
        client.discard(rid)

    dump.close()
    client.give_back(rid)
    assert not client.scan().finished


def test_a_cleanup_removes_also_what_is_mapped_and_the_mapping_stays_readable(
    server: SpoolServer, client: SpoolClient, rid: RequestId, capture: Capture
) -> None:
    hidden = capture(server, rid)
    dump = client.open_dump(rid)

    client.cleanup(rid.run)

    assert not client.scan().finished
    assert np.array_equal(dump.hidden, hidden)
    dump.close()


def test_a_dump_that_somebody_removed_is_missed_by_whoever_opens_it_and_by_nobody_else(
    server: SpoolServer, client: SpoolClient, rid: RequestId, capture: Capture
) -> None:
    capture(server, rid)
    client.directory.finished(rid).unlink()

    with pytest.raises(DumpError, match="removed this dump"):
        client.open_dump(rid)
    client.give_back(rid)
    client.discard(rid)

    assert client.free_bytes() == 0


def test_a_spool_that_was_removed_breaks_neither_the_servers_loop_nor_a_clients_end(
    server: SpoolServer, client: SpoolClient, rid: RequestId, states: Any
) -> None:
    shutil.rmtree(server.directory.path)

    assert server.put(str(rid), 0, *states(rid.rows)) is PutState.IGNORED
    server.beat(forwards=1, queue_depth=0)
    client.trim_free(0)
    assert not client.scan().finished
    client.cleanup(rid.run)
    client.close()
    server.close()


def test_an_announcement_without_room_is_an_error_and_not_the_end_of_the_process(
    small_tmpfs: Path,
) -> None:
    path = small_tmpfs / "spool"
    code = """
import os, sys, pathlib
from extraction.spool.heartbeat import HeartbeatWriter
path = pathlib.Path(sys.argv[1])
status = os.statvfs(path)
with (path / "filler").open("wb") as filler:
    os.posix_fallocate(filler.fileno(), 0, status.f_bavail * status.f_frsize)
try:
    HeartbeatWriter(os.open(path / "heartbeat", os.O_RDWR | os.O_CREAT)).beat(
        forwards=0, rows=0, queue_depth=0, free_bytes=0
    )
except OSError as error:
    print(error.strerror)
"""
    path.mkdir()
    command: list[str | Path] = [sys.executable, "-c", code, path]

    result = subprocess.run(command, check=False, capture_output=True, text=True)

    assert (result.returncode, result.stdout) == (0, "No space left on device\n"), result.stderr


def test_free_files_are_trimmed_to_what_may_stay(
    server: SpoolServer, client: SpoolClient, capture: Capture
) -> None:
    rids = [RequestId("0123456789ab", sample, 0, 1000) for sample in range(4)]
    for rid in rids:
        capture(server, rid)
    for rid in rids:
        client.give_back(rid)
    one_bytes = client.free_bytes() // 4

    client.trim_free(2 * one_bytes)

    assert client.free_bytes() == 2 * one_bytes
    client.trim_free(0)
    assert client.free_bytes() == 0


def test_an_error_is_read_once(server: SpoolServer, client: SpoolClient, rid: RequestId) -> None:
    server.fail(str(rid), ErrorReason.OVERRUN, "buffers exhausted")

    failure = client.take_error(rid)

    assert (failure.reason, failure.detail) == ("overrun", "buffers exhausted")
    with pytest.raises(FileNotFoundError):
        client.take_error(rid)


def test_an_empty_error_file_means_full_and_a_damaged_one_is_still_an_error(
    client: SpoolClient, rid: RequestId
) -> None:
    path = client.directory.error(rid)

    path.touch()
    assert client.take_error(rid).reason == ErrorReason.FULL
    path.write_bytes(b'{"reason": ')
    assert client.take_error(rid).reason == ErrorReason.ENGINE


def test_a_closing_server_takes_its_unfinished_captures_along(
    server: SpoolServer, client: SpoolClient, rid: RequestId, states: Any
) -> None:
    server.put(str(rid), 0, *states(5))

    server.close()

    assert not client.scan().partial
    assert not client.server_alive()
    assert client.heartbeat() is None


@pytest.mark.parametrize("pages", [0, 1])
def test_a_client_that_finds_no_room_to_register_leaves_no_lock_behind(
    small_tmpfs: Path, pages: int
) -> None:
    path, client, full = small_tmpfs / "spool", ClientInfo("run", "store"), small_tmpfs / "full"
    with SpoolServer(path):
        with full.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        os.truncate(full, full.stat().st_size - pages * 4096)  # one: enough for client.lock

        with pytest.raises(OSError, match="No space left"):
            SpoolClient(path, client)

        full.unlink()
        SpoolClient(path, client).close()

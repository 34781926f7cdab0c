"""Rows into dumps: any order, replays, and nothing finished that is not whole."""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from typing_extensions import override

from extraction.spool import (
    ClientInfo,
    ErrorReason,
    PutState,
    RequestId,
    SpoolClient,
    SpoolServer,
    dump_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from extraction.spool import ServerInfo

    Capture = Callable[[SpoolServer, RequestId], npt.NDArray[np.uint16]]

# Every example uses a new request id, so sharing the fixtures between examples is right.
shared = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None
)


@st.composite
def pieces(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """T, and intervals that cover [0, T) in any order, some of them again."""
    rows = draw(st.integers(1, 40))
    cuts = sorted(draw(st.sets(st.integers(1, rows - 1)))) if rows > 1 else []
    edges = [0, *cuts, rows]
    cover = list(itertools.pairwise(edges))
    replays = draw(st.lists(st.sampled_from(cover), max_size=3))
    return rows, draw(st.permutations([*cover, *replays]))


@given(split=pieces(), attempt=st.integers(0, 10**8))
@shared
def test_pieces_in_any_order_with_replays_give_the_source_bit_for_bit(
    server: SpoolServer,
    client: SpoolClient,
    states: Any,
    split: tuple[int, list[tuple[int, int]]],
    attempt: int,
) -> None:
    rows, intervals = split
    rid = RequestId("0123456789ab", len(server._ended), attempt, rows)
    hidden, input_ids = states(rows)

    seen = [
        server.put(str(rid), start, hidden[start:stop], input_ids[start:stop])
        for start, stop in intervals
    ]

    assert seen.count(PutState.FINISHED) == 1
    with client.open_dump(rid) as dump:
        assert np.array_equal(dump.hidden, hidden)
        assert np.array_equal(dump.input_ids, input_ids)
    client.give_back(rid)


@given(split=pieces(), data=st.data())
@shared
def test_a_dump_with_a_missing_row_is_never_finished(
    server: SpoolServer,
    client: SpoolClient,
    states: Any,
    split: tuple[int, list[tuple[int, int]]],
    data: st.DataObject,
) -> None:
    rows, intervals = split
    missing = data.draw(st.integers(0, rows - 1))
    rid = RequestId("0123456789ab", len(server._ended), 0, rows)
    hidden, input_ids = states(rows)

    for start, stop in intervals:
        for low, high in ((start, min(stop, missing)), (max(start, missing + 1), stop)):
            if low < high:
                server.put(str(rid), low, hidden[low:high], input_ids[low:high])

    assert rid not in client.scan().finished
    server.seal(str(rid))
    if rows > 1:
        failure = client.take_error(rid)
        assert failure.reason == ErrorReason.INCOMPLETE
    assert rid not in client.scan().partial


def test_a_row_written_again_holds_its_last_value(
    server: SpoolServer, client: SpoolClient, rid: RequestId, states: Any
) -> None:
    hidden, input_ids = states(rid.rows)

    server.put(str(rid), 0, np.zeros_like(hidden[:6]), input_ids[:6])
    server.put(str(rid), 0, hidden[:6], input_ids[:6])
    server.put(str(rid), 6, hidden[6:], input_ids[6:])

    with client.open_dump(rid) as dump:
        assert np.array_equal(dump.hidden, hidden)


def test_a_reused_file_shows_nothing_of_its_past(
    server: SpoolServer, client: SpoolClient, states: Any, capture: Capture
) -> None:
    for attempt, rows in enumerate([1000, 10, 2000, 1]):
        rid = RequestId("0123456789ab", 0, attempt, rows)
        hidden = capture(server, rid)

        with client.open_dump(rid) as dump:
            assert np.array_equal(dump.hidden, hidden)
            assert np.array_equal(dump.input_ids, states(rows)[1])
        client.give_back(rid)

        free = list((server.directory.path / "free").iterdir())
        assert [file.name for file in free] == [str(rid)], "the one file was not reused"


def test_the_free_file_that_fits_best_is_reused(
    server: SpoolServer, client: SpoolClient, capture: Capture
) -> None:
    rids = [RequestId("0123456789ab", sample, 0, 1000 * (sample + 1)) for sample in range(3)]
    for rid in rids:
        capture(server, rid)
    for rid in rids:
        client.give_back(rid)

    capture(server, RequestId("0123456789ab", 9, 0, 1500))

    left = {file.name for file in (server.directory.path / "free").iterdir()}
    assert left == {str(rids[0]), str(rids[2])}


@pytest.mark.parametrize(
    ("start", "shape", "dtype"),
    [
        (5, (6, 3, 6), np.uint16),  # one row beyond T
        (-1, (2, 3, 6), np.uint16),
        (0, (10, 4, 6), np.uint16),  # another number of slots
        (0, (10, 3, 5), np.uint16),
        (0, (10, 3, 6), np.float32),
    ],
)
def test_other_rows_than_promised_end_as_a_mismatch(
    server: SpoolServer,
    client: SpoolClient,
    rid: RequestId,
    start: int,
    shape: tuple[int, int, int],
    dtype: type,
) -> None:
    state = server.put(str(rid), start, np.zeros(shape, dtype), np.zeros(shape[0], np.int32))

    assert state is PutState.FAILED
    assert client.take_error(rid).reason == ErrorReason.MISMATCH
    assert not client.scan().partial


def test_late_rows_of_an_ended_request_are_ignored(
    server: SpoolServer, client: SpoolClient, rid: RequestId, states: Any
) -> None:
    hidden, input_ids = states(rid.rows)
    server.put(str(rid), 0, hidden[:5], input_ids[:5])
    server.abort(str(rid))

    state = server.put(str(rid), 5, hidden[5:], input_ids[5:])

    assert state is PutState.IGNORED
    scan = client.scan()
    assert not scan.partial
    assert not scan.errors
    assert scan.allocated_bytes == 0


def test_a_capture_whose_file_the_client_removed_is_dropped(
    server: SpoolServer, client: SpoolClient, rid: RequestId, states: Any
) -> None:
    hidden, input_ids = states(rid.rows)
    server.put(str(rid), 0, hidden[:5], input_ids[:5])
    client.discard(rid)

    state = server.put(str(rid), 5, hidden[5:], input_ids[5:])

    assert state is PutState.IGNORED
    assert not client.scan().errors


class _Leaving(np.ndarray[Any, Any]):
    """States during whose copy the client does something."""

    leave: Callable[[], None]

    @override
    def view(self, *arguments: Any, **named: Any) -> Any:
        """Copy, as a capture is about to."""
        self.leave()
        return np.asarray(self).view(*arguments, **named)


@pytest.mark.parametrize("way", ["left", "discarded"])
def test_a_client_that_goes_during_the_last_write_leaves_nothing_behind(
    server: SpoolServer, client: SpoolClient, rid: RequestId, states: Any, way: str
) -> None:
    hidden, input_ids = states(rid.rows)

    def leave() -> None:
        client.discard(rid)
        if way == "left":
            client.cleanup(rid.run)
            client.close()

    leaving = hidden.view(_Leaving)
    leaving.leave = leave

    state = server.put(str(rid), 0, leaving, input_ids)

    assert state is PutState.IGNORED
    assert not list(server.directory.path.glob("hs-*"))


def test_no_reason_is_left_for_a_client_that_has_gone(
    server: SpoolServer, client: SpoolClient, rid: RequestId, states: Any
) -> None:
    hidden, input_ids = states(rid.rows)
    server.put(str(rid), 0, hidden[:5], input_ids[:5])
    client.close()

    server.seal(str(rid))

    assert not list(server.directory.path.glob("hs-*"))


def test_requests_of_others_are_not_captured(
    server: SpoolServer, client: SpoolClient, rid: RequestId, states: Any
) -> None:
    hidden, input_ids = states(rid.rows)
    alien = RequestId("anotherrun", 0, 0, rid.rows)

    for name in ("", "HEALTH_CHECK", "../../etc/passwd", str(alien)):
        assert not server.is_ours(name)
        assert server.put(name, 0, hidden, input_ids) is PutState.IGNORED
        server.fail(name, ErrorReason.ENGINE, "nobody asked")

    assert server.is_ours(str(rid))
    assert client.scan().allocated_bytes == 0


def test_the_next_client_takes_over_and_the_last_ones_captures_end(
    server: SpoolServer, client: SpoolClient, rid: RequestId, states: Any
) -> None:
    hidden, input_ids = states(rid.rows)
    server.put(str(rid), 0, hidden[:5], input_ids[:5])
    client.close()
    next_rid = RequestId("nextrun", 0, 0, rid.rows)

    with SpoolClient(server.directory.path, ClientInfo("nextrun", "other-store")) as other:
        assert server.put(str(rid), 5, hidden[5:], input_ids[5:]) is PutState.IGNORED
        assert server.put(str(next_rid), 0, hidden, input_ids) is PutState.FINISHED

        assert not other.scan().partial
        with other.open_dump(next_rid) as dump:
            assert dump.metadata.store == "other-store"


def test_without_a_client_nothing_is_captured(
    server: SpoolServer, rid: RequestId, states: Any
) -> None:
    assert server.put(str(rid), 0, *states(rid.rows)) is PutState.IGNORED


def test_an_unreadable_registration_captures_nothing(
    server: SpoolServer, client: SpoolClient, rid: RequestId, states: Any
) -> None:
    (server.directory.path / "client.json").write_bytes(b"{")

    assert server.put(str(rid), 0, *states(rid.rows)) is PutState.IGNORED


def test_rows_before_the_announcement_fail(spool_path: Path, rid: RequestId, states: Any) -> None:
    with (
        SpoolServer(spool_path) as server,
        SpoolClient(spool_path, ClientInfo(rid.run, "s")) as client,
    ):
        assert server.put(str(rid), 0, *states(rid.rows)) is PutState.FAILED
        assert client.take_error(rid).reason == ErrorReason.ENGINE


def test_a_full_spool_is_an_error_file_and_the_server_goes_on(
    small_tmpfs: Path, info: ServerInfo, states: Any
) -> None:
    with (
        SpoolServer(small_tmpfs / "spool") as server,
        SpoolClient(small_tmpfs / "spool", ClientInfo("ab", "s")) as client,
    ):
        server.announce(info)
        large = RequestId("ab", 0, 0, 200_000)
        assert dump_bytes(large.rows, info) > client.headroom_bytes()

        assert server.put(str(large), 0, *states(10)) is PutState.FAILED

        failure = client.take_error(large)
        assert failure.reason == ErrorReason.FULL
        assert str(client.headroom_bytes()) in failure.detail
        small = RequestId("ab", 1, 0, 10)
        assert server.put(str(small), 0, *states(10)) is PutState.FINISHED


def test_a_file_system_that_fills_up_meanwhile_is_an_error_file_too(
    small_tmpfs: Path, info: ServerInfo, states: Any
) -> None:
    with (
        SpoolServer(small_tmpfs / "spool") as server,
        SpoolClient(small_tmpfs / "spool", ClientInfo("ab", "s")) as client,
    ):
        server.announce(info)
        rid = RequestId("ab", 0, 0, 1000)
        other = small_tmpfs / "somebody else's file"
        with pytest.raises(OSError, match="No space left"):
            other.write_bytes(bytes(5 << 20))

        assert server.put(str(rid), 0, *states(1000)) is PutState.FAILED

        assert client.take_error(rid).reason == ErrorReason.FULL
        other.unlink()
        assert server.put(str(RequestId("ab", 0, 1, 1000)), 0, *states(1000)) is PutState.FINISHED


def test_room_that_another_process_is_about_to_take_is_not_promised_twice(
    small_tmpfs: Path, info: ServerInfo, states: Any
) -> None:
    with (
        SpoolServer(small_tmpfs / "spool") as server,
        SpoolClient(small_tmpfs / "spool", ClientInfo("ab", "s")) as client,
    ):
        server.announce(info)
        rid = RequestId("ab", 0, 0, 40_000)
        assert dump_bytes(rid.rows, info) < client.headroom_bytes()
        writer = threading.Thread(target=server.put, args=(str(rid), 0, *states(10)))
        other = os.open(small_tmpfs / "spool/free", os.O_RDONLY)  # a process of the same server
        try:
            fcntl.flock(other, fcntl.LOCK_EX)
            writer.start()
            writer.join(timeout=0.5)
            (small_tmpfs / "the other's dump").write_bytes(bytes(3 << 20))
        finally:
            os.close(other)
        writer.join()

        assert client.take_error(rid).reason == ErrorReason.FULL


def test_free_files_make_room_for_what_is_needed(
    small_tmpfs: Path, info: ServerInfo, states: Any, capture: Capture
) -> None:
    with (
        SpoolServer(small_tmpfs / "spool") as server,
        SpoolClient(small_tmpfs / "spool", ClientInfo("ab", "s")) as client,
    ):
        server.announce(info)
        for sample in range(3):
            rid = RequestId("ab", sample, 0, 20_000)
            capture(server, rid)
            assert rid in client.scan().finished
        for sample in range(3):
            client.give_back(RequestId("ab", sample, 0, 20_000))
        large = RequestId("ab", 9, 0, 80_000)
        assert dump_bytes(large.rows, info) > client.headroom_bytes()

        hidden = capture(server, large)

        with client.open_dump(large) as dump:
            assert np.array_equal(dump.hidden, hidden)

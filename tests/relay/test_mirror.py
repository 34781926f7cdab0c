"""A mirrored spool looks like the server's own, and nothing is removed there but what is here."""

# ruff: noqa: ASYNC240  # looking at a spool in shared memory blocks nothing

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from aiohttp import test_utils, web

import extraction.relay.download
import extraction.relay.opening
from extraction.relay.mirror import Mirror
from extraction.relay.wire import RelayAddress
from extraction.spool import (
    ClientInfo,
    ErrorReason,
    SpoolBusyError,
    SpoolClient,
    SpoolForeignError,
    SpoolServer,
    SpoolView,
)
from extraction.spool.directory import SpoolDirectory
from hsstore.errors import InterruptedRunError
from tests.relay.given import (
    CLIENT,
    STORE,
    TOKEN,
    Line,
    assert_same,
    capture,
    mirror,
    relay,
    request,
    until,
)
from tests.spool.given import make_info

if TYPE_CHECKING:
    from pathlib import Path

    from extraction.spool import RequestId

LARGE = request(3, 60_000)
"""A dump of about 2 MB."""


async def test_a_dump_comes_as_it_is_and_is_given_back_at_the_server(
    server: SpoolServer, here: Path
) -> None:
    there = server.directory
    rids = [request(sample, 1 + 500 * sample) for sample in range(12)]
    async with relay(there.path) as url, mirror(url, here) as one, one.hold(CLIENT, 30) as spool:
        assert spool.server() is not None
        for rid in rids:
            capture(server, rid)
        await until(lambda: len(spool.settled(rids)[0]) == len(rids))
        for rid in rids:
            assert_same(spool, rid)
            assert there.finished(rid).exists()
            spool.give_back(rid)
        await until(lambda: not any(there.finished(rid).exists() for rid in rids))

        assert {path.name for path in (there.path / "free").iterdir()} == set(map(str, rids))
    assert not list(there.path.glob("hs-*"))
    assert not list((there.path / "free").iterdir())
    assert not here.exists()
    assert not list(here.parent.iterdir())


def lies_there(server: SpoolServer, rid: RequestId) -> bool:
    """Tell whether the dump is at the server."""
    return server.directory.finished(rid).exists()


async def test_a_dump_goes_on_where_the_line_broke(server: SpoolServer, here: Path) -> None:
    async with relay(server.directory.path) as url, Line(url) as line:
        line.break_after_bytes = 700_000
        async with mirror(line.url, here) as one, one.hold(CLIENT, 30) as spool:
            capture(server, LARGE)
            size = server.directory.finished(LARGE).stat().st_size
            await until(lambda: spool.settled([LARGE])[0])

            assert_same(spool, LARGE)
            assert line.carried_bytes < size + 1_500_000  # not from the beginning, three times
            line.break_after_bytes = 0
            spool.give_back(LARGE)


async def test_a_byte_that_changed_on_the_way_is_noticed(server: SpoolServer, here: Path) -> None:
    async with relay(server.directory.path) as url, Line(url) as line:
        line.spoil_at = 1_000_000
        async with mirror(line.url, here) as one, one.hold(CLIENT, 30) as spool:
            capture(server, LARGE)
            await until(lambda: spool.settled([LARGE])[0])

            assert line.spoil_at < 0
            assert_same(spool, LARGE)


async def test_a_cut_line_is_said_and_the_server_is_not_gone(
    server: SpoolServer, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        relay(server.directory.path) as url,
        Line(url) as line,
        mirror(line.url, here) as one,
        one.hold(CLIENT, 30) as spool,
    ):
        line.cut()
        beat = spool.heartbeat()
        server.beat(forwards=7, queue_depth=0)
        capture(server, request(1))
        await until(lambda: "has not answered for" in caplog.text)
        assert line.url in caplog.text
        assert spool.server() is not None
        assert spool.heartbeat() == beat  # what the watchdog goes by
        assert spool.is_coming(request(1))
        line.mend()
        await until(lambda: spool.settled([request(1)])[0])

        assert_same(spool, request(1))
        await until(lambda: (found := spool.heartbeat()) is not None and found.forwards == 7)
        assert "answers again" in caplog.text


async def test_the_client_goes_on_with_a_relay_that_was_started_again(
    server: SpoolServer, here: Path
) -> None:
    rids = [request(sample) for sample in range(3)]
    async with relay(server.directory.path) as url:
        one = Mirror(RelayAddress(url, TOKEN), here)
        await one.__aenter__()
        await one.connect(30)
        holding = one.hold(CLIENT, 30)
        spool = await holding.__aenter__()
        capture(server, rids[0])
        await until(lambda: spool.settled(rids)[0])
    capture(server, rids[1])  # the server still captures for us
    spool.give_back(rids[0])
    assert lies_there(server, rids[0])
    async with relay(server.directory.path, port=int(url.rpartition(":")[2])):
        await until(lambda: rids[1] in spool.settled(rids)[0] and not lies_there(server, rids[0]))
        capture(server, rids[2])
        await until(lambda: rids[2] in spool.settled(rids)[0])
        await holding.__aexit__(None, None, None)
        await one.__aexit__()


async def test_dumps_of_a_killed_client_are_there_for_the_next_run_and_only_for_it(
    server: SpoolServer, here: Path
) -> None:
    dead = [request(sample, run="dead") for sample in range(2)]
    path = server.directory.path
    with SpoolClient(path, ClientInfo("dead", STORE)):
        for rid in dead:
            capture(server, rid)
    async with relay(path) as url:
        async with mirror(url, here) as one:
            assert not list(here.glob("hs-*"))  # nothing is fetched for nobody
            async with one.hold(CLIENT, 30) as spool:
                assert set(spool.scan().finished) == set(dead)
                assert_same(spool, dead[0])
                spool.discard(dead[1])
            assert [lies_there(server, rid) for rid in dead] == [True, False]
        assert lies_there(server, dead[0])


async def test_what_a_killed_mirror_had_fetched_is_not_fetched_again(
    server: SpoolServer, here: Path
) -> None:
    async with relay(server.directory.path) as url, Line(url) as line:
        async with mirror(line.url, here) as one, one.hold(CLIENT, 30) as spool:
            capture(server, LARGE)
            await until(lambda: spool.settled([LARGE])[0])
            kept = server.directory.finished(LARGE).read_bytes()
        SpoolDirectory.create(here).finished(LARGE).write_bytes(kept)  # as a killed one leaves it
        line.carried_bytes = 0
        async with mirror(line.url, here) as one, one.hold(ClientInfo("next", STORE), 30) as spool:
            assert set(spool.scan().finished) == {LARGE}
            assert line.carried_bytes < 100_000


async def test_why_there_is_no_dump_comes_too(server: SpoolServer, here: Path) -> None:
    rid = request(5)
    async with (
        relay(server.directory.path) as url,
        mirror(url, here) as one,
        one.hold(CLIENT, 30) as spool,
    ):
        server.fail(str(rid), ErrorReason.OVERRUN, "too much")
        await until(lambda: spool.settled([rid])[1])
        failure = spool.take_error(rid)
        await until(lambda: not server.directory.error(rid).exists())

        assert (failure.reason, failure.detail) == ("overrun", "too much")
        await asyncio.sleep(0.1)
        assert spool.settled([rid]) == ([], [])


async def test_discarding_a_capture_under_way_stops_it_at_the_server(
    server: SpoolServer, here: Path
) -> None:
    rid = request(5)
    async with (
        relay(server.directory.path) as url,
        mirror(url, here) as one,
        one.hold(CLIENT, 30) as spool,
    ):
        capture(server, rid, rows=4)
        await until(lambda: rid in spool.scan().partial)
        spool.discard(rid)
        await until(lambda: not server.directory.part(rid).exists())
        await asyncio.sleep(0.1)

        assert not spool.scan().partial
        server.drop_unwanted()
        assert not server._open


async def test_the_end_of_a_session_leaves_nothing_of_its_run_at_the_server(
    server: SpoolServer, here: Path
) -> None:
    async with relay(server.directory.path) as url, mirror(url, here) as one:
        async with one.hold(CLIENT, 30) as spool:
            for sample in range(4):
                capture(server, request(sample))
            capture(server, request(9), rows=3)
            spool.cleanup(CLIENT.run)
        assert not list(server.directory.path.glob("hs-*"))
        assert not SpoolView(here).scan().finished


async def test_a_server_that_goes_and_comes_back_does_so_here_too(room: Path, here: Path) -> None:
    path = room / "there" / "spool"
    async with relay(path) as url, mirror(url, here) as one:
        assert one.broken is None
        assert SpoolView(here).server() is None
        for _ in range(2):
            with SpoolServer(path) as server:
                await until(lambda: SpoolView(here).server_alive())
                assert SpoolView(here).server() is None  # it is loading
                server.announce(make_info())
                await until(lambda: SpoolView(here).server() is not None)
            await until(lambda: not SpoolView(here).server_alive())


async def test_a_second_client_is_told_who_holds_the_spool(
    server: SpoolServer, room: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.relay.opening, "HELD_SECONDS", 0.5)
    async with relay(server.directory.path) as url, mirror(url, here) as one:
        async with one.hold(CLIENT, 30), mirror(url, room / "other" / "spool") as other:
            with pytest.raises(SpoolBusyError, match=f"held by run {CLIENT.run} of host"):
                async with other.hold(ClientInfo("second", STORE), 30):
                    pass
        with (
            SpoolClient(server.directory.path, ClientInfo("local", STORE)),
            pytest.raises(SpoolBusyError, match=r"run': 'local'.*the server's own host"),
        ):
            async with one.hold(CLIENT, 30):
                pass


async def test_two_mirrors_do_not_share_a_directory(server: SpoolServer, here: Path) -> None:
    async with relay(server.directory.path) as url, mirror(url, here):
        with pytest.raises(SpoolBusyError, match="held by another process"):
            Mirror(RelayAddress(url, TOKEN), here)


async def test_a_run_whose_connection_broke_gives_way_to_the_next(
    server: SpoolServer, room: Path, here: Path
) -> None:
    """As after a SIGKILL: nothing was said, and the dump is still there."""
    async with relay(server.directory.path) as url, Line(url) as line:
        dead = Mirror(RelayAddress(line.url, TOKEN), room / "dead" / "spool")
        async with dead:
            await dead.connect(30)
            holding = dead.hold(CLIENT, 30)
            old = await holding.__aenter__()
            capture(server, request(1))
            line.cut()
            async with mirror(url, here) as one, one.hold(ClientInfo("next", STORE), 30) as spool:
                assert set(spool.scan().finished) == {request(1)}
                line.mend()
                await until(lambda: dead.broken is not None)
                assert isinstance(dead.broken, SpoolBusyError)
                with pytest.raises(SpoolBusyError):
                    old.settled([])
            await holding.__aexit__(None, None, None)
        assert lies_there(server, request(1))


async def test_a_lease_that_ran_out_frees_the_spool_and_touches_no_dump(
    server: SpoolServer, here: Path
) -> None:
    path = server.directory.path
    async with (
        relay(path, lease_seconds=2.0) as url,
        Line(url) as line,
        mirror(line.url, here) as one,
        one.hold(CLIENT, 30) as spool,
    ):
        capture(server, request(1))
        line.cut()
        await until(lambda: not (path / "client.json").exists())
        assert lies_there(server, request(1))
        line.mend()
        await until((path / "client.json").exists)
        capture(server, request(2))
        await until(lambda: len(spool.settled([request(1), request(2)])[0]) == 2)


async def test_room_is_what_both_machines_have(server: SpoolServer, here: Path) -> None:
    async with relay(server.directory.path) as url, mirror(url, here):
        there_bytes = int((here / "limit").read_text())
    assert 0 < there_bytes <= 2 * SpoolView(server.directory.path).headroom_bytes()

    directory = SpoolDirectory.create(here)
    assert SpoolView(here).headroom_bytes() > 12345
    directory.write(here / "limit", b"12345")
    assert SpoolView(here).headroom_bytes() == 12345
    assert not SpoolView(here).scan().foreign


async def test_a_wrong_token_and_a_relay_that_is_not_there_are_said(
    server: SpoolServer, here: Path
) -> None:
    async with relay(server.directory.path) as url:
        with pytest.raises(
            SpoolForeignError, match=r"another token.*HSSTORE_RELAY_TOKEN"
        ) as caught:
            async with mirror(url, here, "wrong"):
                pass
        assert TOKEN not in str(caught.value)
    async with Mirror(RelayAddress(url, TOKEN), here) as one:
        with pytest.raises(InterruptedRunError, match="start it on the server's host"):
            await one.connect(0.5)


async def test_the_spool_of_a_server_itself_is_refused_and_left_as_it_is(
    server: SpoolServer,
) -> None:
    with SpoolClient(server.directory.path, CLIENT):
        capture(server, request(1))
    before = sorted(path.name for path in server.directory.path.iterdir())

    with pytest.raises(SpoolForeignError, match="the spool of a server itself"):
        Mirror(RelayAddress("http://127.0.0.1:9", TOKEN), server.directory.path)

    assert sorted(path.name for path in server.directory.path.iterdir()) == before


async def test_a_relay_whose_server_is_not_there_yet_says_nothing_of_room(here: Path) -> None:
    async with relay(here.with_name("no-server")) as url, mirror(url, here):
        assert SpoolView(here).headroom_bytes() > 0


async def test_what_a_run_left_itself_is_removed_at_the_server_and_not_fetched_again(
    server: SpoolServer, here: Path
) -> None:
    whole, broken, failed = request(1), request(2), request(3)
    with SpoolClient(server.directory.path, CLIENT):
        capture(server, whole)
        capture(server, broken, rows=3)
        server.fail(str(failed), ErrorReason.ENGINE, "broken")
    async with (
        relay(server.directory.path) as url,
        mirror(url, here) as one,
        one.hold(CLIENT, 30) as spool,
    ):
        assert not list(server.directory.path.glob("hs-*"))
        assert spool.settled([whole, broken, failed]) == ([], [])


def grow(server: SpoolServer, rid: RequestId, size_bytes: int) -> None:
    """Have a dump of any size lie at the server, without memory behind it."""
    with server.directory.finished(rid).open("wb") as file:
        file.truncate(size_bytes)


async def test_of_a_dead_runs_dumps_only_what_has_room_here_is_fetched(
    server: SpoolServer, here: Path
) -> None:
    fits, over_the_budget, endless = (request(sample, run="dead") for sample in range(3))
    grow(server, fits, 6_000)
    grow(server, over_the_budget, 6_000)
    grow(server, endless, 1 << 50)
    for seconds, rid in enumerate((fits, over_the_budget, endless)):
        os.utime(server.directory.finished(rid), (seconds, seconds))  # the oldest first
    async with (
        relay(server.directory.path) as url,
        mirror(url, here) as one,
        one.hold(CLIENT, 30, most_bytes=10_000) as spool,
    ):
        assert set(spool.scan().finished) == {fits}
        assert lies_there(server, fits)
        assert not lies_there(server, over_the_budget)
        assert not lies_there(server, endless)


async def test_a_dump_without_room_here_is_a_capture_that_found_none(
    server: SpoolServer, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.relay.download, "FULL_SECONDS", 0.3)
    async with (
        relay(server.directory.path) as url,
        mirror(url, here) as one,
        one.hold(CLIENT, 30) as spool,
    ):
        rid = request(1)
        grow(server, rid, 1 << 50)
        await until(lambda: spool.settled([rid])[1])

        assert spool.take_error(rid).reason == ErrorReason.FULL
        await until(lambda: not lies_there(server, rid))


async def test_a_relay_that_went_away_before_the_session_is_not_waited_for_without_end(
    server: SpoolServer, here: Path
) -> None:
    async with (
        relay(server.directory.path) as url,
        Line(url) as line,
        mirror(line.url, here) as one,
    ):
        line.cut()
        with pytest.raises(InterruptedRunError, match=r"relay .* did not answer for"):
            async with one.hold(CLIENT, 0.5):
                pass


async def test_a_session_that_is_not_wanted_any_more_does_not_hold_the_spool(
    server: SpoolServer, here: Path
) -> None:
    path = server.directory.path
    rid = request(1, 60_000, run="dead")
    with SpoolClient(path, ClientInfo("dead", STORE)):
        capture(server, rid)
    async with relay(path) as url, Line(url) as line, mirror(line.url, here) as one:
        line.break_after_bytes = 1  # what lies there never comes
        holding = asyncio.ensure_future(one.hold(CLIENT, 30).__aenter__())
        await until((path / "client.json").exists)
        line.break_after_bytes = 0
        holding.cancel()
        await asyncio.wait({holding})
        await until(lambda: not (path / "client.json").exists())


async def test_something_else_that_answers_for_a_while_ends_nothing(
    server: SpoolServer, here: Path
) -> None:
    """As a proxy does, while the relay behind it is started again."""
    asked: list[str] = []

    async def refuse(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return web.Response(status=404)

    async with (
        relay(server.directory.path) as url,
        Line(url) as line,
        mirror(line.url, here) as one,
    ):
        proxy = test_utils.RawTestServer(refuse)
        async with one.hold(CLIENT, 30) as spool, proxy:
            line.lead_to(str(proxy.make_url("/")))
            await until(lambda: len(asked) > 1)
            capture(server, request(1))
            line.lead_to(url)
            await until(lambda: spool.settled([request(1)])[0])
            assert one.broken is None


async def test_a_spool_that_a_server_makes_anew_is_held_again(room: Path, here: Path) -> None:
    path = room / "there" / "spool"
    async with relay(path) as url, mirror(url, here) as one:
        with SpoolServer(path) as server:
            server.announce(make_info())
            await until(lambda: SpoolView(here).server() is not None)
            holding = one.hold(CLIENT, 30)
            spool = await holding.__aenter__()
            shutil.rmtree(path)
            await until(lambda: not spool.server_alive())
        with SpoolServer(path) as server:
            server.announce(make_info())
            await until((path / "client.json").exists)
            capture(server, request(1))
            await until(lambda: spool.settled([request(1)])[0])
            await holding.__aexit__(None, None, None)

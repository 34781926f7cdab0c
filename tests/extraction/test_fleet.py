"""Several servers for one run: they share the work, come late, go away, are refused and taken out."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extraction.addresses import ServerAddress
from hsstore.store import Store
from tests.extraction.fake_model import Fault
from tests.extraction.fleets import (
    SAMPLES,
    all_have_asked,
    asked,
    left_in,
    run,
    run_with_file,
    serve,
    wait_until,
    write,
)
from tests.extraction.processes import left_claims, verify
from tests.extraction.running import run_here

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("looks_often")


async def test_three_servers_share_the_work_and_each_sample_is_asked_for_once(
    store: Path, data: Path
) -> None:
    alone = store.with_name("alone.zarr")
    async with serve(store, "a", "b", "c") as servers:
        await run(alone, servers[:1], data)
        servers[0].requests.clear()
        running = asyncio.create_task(run(store, servers, data, max_in_flight=2))
        await all_have_asked(*servers)
        outcome = await running
        left = [left_in(server) for server in servers]

    assert outcome.code == 0, outcome.message
    assert asked(*servers) == list(range(SAMPLES))
    assert all(server.requests for server in servers)
    assert max(server.most_at_once for server in servers[1:]) <= 7  # of the handshake
    assert left == [set(), set(), set()]
    verify(store, SAMPLES)
    one, three = Store.open(alone), Store.open(store)
    assert np.array_equal(one.completion().digest, three.completion().digest)
    (record,) = three.runs()
    assert [one.url for one in record.servers] == [server.url for server in servers]
    assert len({one.instance for one in record.servers}) == 3
    assert sum(one.tokens for one in record.servers) == three.length.sum()


async def test_a_slow_server_gets_less(store: Path, data: Path) -> None:
    async with serve(store, "slow", "quick") as (slow, quick):
        running = asyncio.create_task(run(store, [slow, quick], data, max_in_flight=2))
        asking = asyncio.create_task(all_have_asked(slow, quick))
        await slow.wait_for_requests(1)
        slow.batching_seconds = 1.0  # not for the handshake
        await asking
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert 0 < 2 * len(slow.requests) < len(quick.requests)


async def test_what_a_dead_server_had_is_asked_of_another_at_once_and_it_is_parked(
    store: Path, data: Path
) -> None:
    async with serve(store, "a", "b") as (a, b):
        a.hold, b.hold = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(run(store, [a, b], data, max_in_flight=2))
        await a.wait_for_requests(2)
        await a.leave()
        b.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert asked(b) == list(range(SAMPLES))
    assert len(a.requests) == 2
    assert f"server {a.url} is parked" in outcome.log
    states = {one.url: one.state for one in outcome.status.servers}
    assert states == {a.url: "parked", b.url: "up"}
    verify(store, SAMPLES)


async def test_a_server_that_is_healthy_and_breaks_every_request_is_left_alone_for_longer_and_longer(
    store: Path, data: Path
) -> None:
    async with serve(store, "sick", "well") as (sick, well):
        sick.always = dict.fromkeys(range(SAMPLES), Fault.RESET)
        well.hold = asyncio.Event()
        running = asyncio.create_task(
            run(store, [sick, well], data, max_in_flight=2, max_attempts=1)
        )
        await sick.wait_for_requests(2)
        began = time.monotonic()
        await sick.wait_for_requests(3)
        well.hold.set()
        outcome = await running
        seconds = time.monotonic() - began

    assert outcome.code == 0, outcome.message
    # Two at a time: after 1 s, after 2 s more, after 4 s more.
    assert len(sick.requests) <= 2 * (2 + math.log2(1 + seconds))
    assert asked(well) == list(range(SAMPLES))


async def test_when_all_are_away_the_run_waits_and_goes_on_with_the_first_that_is_back(
    store: Path, data: Path
) -> None:
    async with serve(store, "a", "b") as (a, b):
        a.hold = b.hold = asyncio.Event()
        running = asyncio.create_task(run(store, [a, b], data, max_in_flight=2))
        await a.wait_for_requests(2)
        for server in (a, b):
            server.health_status = 503
            server.always = dict.fromkeys(range(SAMPLES), Fault.RESET)
        a.hold.set()
        await asyncio.sleep(1.0)
        assert not running.done()
        b.health_status, b.always = 200, {}
        outcome = await running

    assert outcome.code == 0, outcome.message
    verify(store, SAMPLES)


async def test_when_none_comes_back_the_run_ends_after_the_wait(store: Path, data: Path) -> None:
    async with serve(store, "a", "b") as (a, b):
        a.hold = b.hold = asyncio.Event()
        running = asyncio.create_task(
            run(store, [a, b], data, max_in_flight=2, server_wait_seconds=1.0)
        )
        await a.wait_for_requests(2)
        await a.leave()
        await b.leave()
        outcome = await running

    assert outcome.code == 75
    assert "did not answer for 1 s" in outcome.message
    assert left_claims(store) == []


async def test_a_server_that_is_announced_and_does_not_answer_holds_up_nobody(
    store: Path, data: Path
) -> None:
    async with serve(store, "a", "b") as (a, b):
        a.health_status = 503
        outcome = await run(store, [a, b], data)

    assert outcome.code == 0, outcome.message
    assert a.requests == []
    assert [one.state for one in outcome.status.servers] == ["waiting", "up"]


async def test_a_server_of_another_model_is_dropped_by_name_and_the_run_goes_on(
    store: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(store, "a") as (a,), serve(store, "b", layers=(1, 3)) as (b,):
        await run(store, [a], data)
        for chunk in (store / "complete").glob("c.*"):
            chunk.unlink()
        a.requests.clear()
        a.hold = asyncio.Event()
        running = asyncio.create_task(run(store, [b, a], data))
        await wait_until(lambda: f"server {b.url} is not used: " in caplog.text)
        a.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert b.requests == []
    assert f"server {b.url} is not used: " in outcome.log
    assert "layers is (0, 3) in the store and (1, 3) on the server" in outcome.log
    state = next(one for one in outcome.status.servers if one.url == b.url)
    assert (state.state, state.tokens) == ("dropped", 0)
    assert "layers is (0, 3)" in state.message


async def test_a_server_with_other_golden_states_is_dropped(
    store: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(store, "a", "b") as (a, b):
        await run(store, [a], data)
        for chunk in (store / "complete").glob("c.*"):
            chunk.unlink()
        b.offset = 3.0
        a.hold = asyncio.Event()
        running = asyncio.create_task(run(store, [a, b], data, max_in_flight=2))
        await wait_until(lambda: f"server {b.url} is not used: " in caplog.text)
        a.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert f"server {b.url} is not used: the server computes other states" in outcome.log
    assert b.requests == []


async def test_when_all_are_refused_the_run_ends_with_the_last_reason(
    store: Path, data: Path
) -> None:
    async with serve(store, "a", "b") as servers:
        for server in servers:
            server.key = "secret"
        outcome = await run(store, servers, data)

    assert outcome.code == 3
    assert "set HSSTORE_API_KEY" in outcome.message
    assert not store.exists()


async def test_a_server_that_comes_back_as_another_model_is_dropped_and_its_samples_go_elsewhere(
    store: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(store, "a", "b") as (a, b):
        b.hold = asyncio.Event()
        running = asyncio.create_task(run(store, [a, b], data, max_in_flight=2))
        await a.wait_for_requests(5)
        a.become(capture_hash="0" * 64)
        await wait_until(lambda: f"server {a.url} is not used: " in caplog.text)
        b.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert f"server {a.url} is not used: the server came back with another model" in outcome.log
    verify(store, SAMPLES)


async def test_the_same_server_under_two_names_is_used_once(
    store: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(store, "a", "b") as (a, b):
        b.spool.instance = a.info.instance
        b.spool.announce(replace(b.info, instance=a.info.instance))
        a.hold = b.hold = asyncio.Event()
        running = asyncio.create_task(run(store, [a, b], data))
        await wait_until(lambda: "this is the same server as" in caplog.text)
        a.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert "this is the same server as" in outcome.log
    assert not (a.requests and b.requests)


async def test_two_servers_cannot_share_a_spool(store: Path, data: Path) -> None:
    async with serve(store, "a") as (a,):
        link = store.parent / "link"
        link.symlink_to(a.spool.directory.path)
        other = ServerAddress(url="http://127.0.0.1:2", spool=link)
        outcome = await run_here(store, a.url, a.spool.directory.path, data, more_servers=(other,))

    assert outcome.code == 2
    assert f"{a.url} and http://127.0.0.1:2 cannot share the spool {link}" in outcome.message
    assert a.requests == []


async def test_a_server_that_is_named_in_the_file_later_joins(
    store: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(store, "a", "b") as (a, b):
        a.hold, a.held = asyncio.Event(), set(range(20, SAMPLES))
        file = write(store.parent / "servers.txt", a)
        running = asyncio.create_task(run_with_file(store, file, data))
        await a.wait_for_requests(20)
        file.write_text("no such line\n")  # half written: changes nothing
        await wait_until(lambda: "no such line: not a URL" in caplog.text)
        write(file, a, b)
        await b.wait_for_requests(20)
        a.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert "servers.txt, line 1 no such line: not a URL" in outcome.log
    assert asked(a, b) == list(range(SAMPLES))
    verify(store, SAMPLES)


async def test_a_server_that_is_taken_out_ends_what_it_has_and_its_spool_is_released(
    store: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(store, "a", "b") as (a, b):
        a.hold = asyncio.Event()
        b.hold, b.held = asyncio.Event(), set(range(40, SAMPLES))
        file = write(store.parent / "servers.txt", a, b)
        running = asyncio.create_task(run_with_file(store, file, data))
        await a.wait_for_requests(2)
        await b.wait_for_requests(10)
        write(file, b)
        await wait_until(lambda: f"server {a.url} is asked for nothing more" in caplog.text)
        assert len(a.requests) == 2
        assert (a.spool.directory.path / "client.lock").exists()  # two are under way
        a.hold.set()
        await wait_until(lambda: a.at_once == 0)
        b.hold.set()
        await wait_until(lambda: not left_in(a))
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert f"server {a.url} has left" in outcome.log
    assert asked(a, b) == list(range(SAMPLES))
    assert [one.url for one in outcome.status.servers] == [b.url]
    verify(store, SAMPLES)


async def test_a_server_that_is_taken_out_and_named_again_is_asked_again(
    store: Path, data: Path
) -> None:
    async with serve(store, "a", "b") as (a, b):
        a.hold, a.held = asyncio.Event(), set(range(40, SAMPLES))
        b.hold, b.held = asyncio.Event(), set(range(40, SAMPLES))
        file = write(store.parent / "servers.txt", a, b)
        running = asyncio.create_task(run_with_file(store, file, data))
        await a.wait_for_requests(5)
        write(file, b)
        a.hold.set()
        await wait_until(lambda: not left_in(a))
        before = len(a.requests)
        write(file, a, b)
        await a.wait_for_requests(before + 1)
        b.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert "is not used" not in outcome.log
    assert asked(a, b) == list(range(SAMPLES))
    verify(store, SAMPLES)


async def test_dumps_of_a_dead_run_are_taken_from_the_spool_of_each_server(
    store: Path, data: Path
) -> None:
    async with serve(store, "a", "b") as (a, b):
        await run(store, [a], data)
        for chunk in (store / "complete").glob("c.*"):
            chunk.unlink()
        a.requests.clear()
        opened = Store.open(store)
        for server, samples in ((a, range(10)), (b, range(5, 20))):
            tokens = {sample: opened.input_ids(sample) for sample in samples}
            server.leave_dumps(opened.spec.store, tokens)
        b.health_status, a.hold = 503, asyncio.Event()  # one comes later
        running = asyncio.create_task(run(store, [a, b], None, max_in_flight=1))
        await a.wait_for_requests(1)
        b.health_status = 200
        await b.wait_for_requests(1)
        a.hold.set()
        outcome = await running
        left = [left_in(server) for server in (a, b)]

    assert outcome.code == 0, outcome.message
    assert set(asked(a, b)).isdisjoint(range(10))  # of one of the later server's it may be too late
    assert left == [set(), set()]
    verify(store, SAMPLES)


async def test_the_budget_of_one_spool_is_relieved_while_another_has_room(
    store: Path, data: Path
) -> None:
    """A block that is larger than all spools together gets filled."""
    options = {"shard_rows": 8192, "span_samples": SAMPLES}
    async with serve(store, "a", "b") as servers:
        running = asyncio.create_task(
            run(store, servers, data, spool_budget_bytes=200_000, max_in_flight=4, **options)
        )
        await all_have_asked(*servers)
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert outcome.status.spool_budget_bytes == 400_000
    assert all(server.requests for server in servers)
    verify(store, SAMPLES)

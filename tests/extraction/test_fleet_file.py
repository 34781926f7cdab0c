"""What a servers file says while a run waits for its first server, and while it goes on."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

import extraction.asking
import extraction.relay.mirror
from extraction.addresses import ServerAddress
from hsstore.store import Store
from hsstore.testing.stores import make_store
from tests.extraction.fake_model import Fault
from tests.extraction.fleets import (
    SAMPLES,
    absent,
    asked,
    at,
    give,
    left_in,
    run,
    run_with_file,
    serve,
    wait_until,
    write,
)
from tests.extraction.processes import verify
from tests.extraction.running import run_here
from tests.relay.given import TOKEN, Line, relay

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("looks_often")


async def test_a_server_that_is_named_in_another_way_goes_on_under_its_new_name(
    store: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(store, "a") as (a,):
        a.hold, a.held = asyncio.Event(), set(range(20, SAMPLES))
        file = write(store.parent / "servers.txt", a)
        running = asyncio.create_task(run_with_file(store, file, data))
        await a.wait_for_requests(20)
        url = a.url.replace("127.0.0.1", "localhost")
        write(file, at(a).model_copy(update={"url": url}))
        await wait_until(lambda: f"server {a.url} is asked for nothing more" in caplog.text)
        a.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert "is not used" not in outcome.log
    assert [(one.url, one.state) for one in outcome.status.servers] == [(url, "up")]
    verify(store, SAMPLES)


async def test_a_relay_that_is_named_in_another_way_is_left_before_it_is_used_again(
    store: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSSTORE_RELAY_TOKEN", TOKEN)
    async with serve(store, "a") as (a,), relay(a.spool.directory.path) as url:
        a.hold, a.held = asyncio.Event(), set(range(20, SAMPLES))
        file = store.parent / "servers.txt"
        file.write_text(f"{a.url}={url}")
        running = asyncio.create_task(run_with_file(store, file, data))
        await a.wait_for_requests(20)
        file.write_text(f"{a.url}={url.replace('127.0.0.1', 'localhost')}")
        await asyncio.sleep(1.5)
        a.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert "another session begins" not in outcome.log  # the relay's word
    assert asked(a) == list(range(SAMPLES))
    verify(store, SAMPLES)


async def test_what_a_relay_that_is_away_for_good_was_asked_for_is_asked_of_another_server(
    store: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSSTORE_RELAY_TOKEN", TOKEN)
    monkeypatch.setattr(extraction.relay.mirror, "FLUSH_SECONDS", 0.1)
    async with (
        serve(store, "a", "b") as (a, b),
        relay(b.spool.directory.path) as url,
        Line(url) as line,
    ):
        a.hold, a.held = asyncio.Event(), set(range(20, SAMPLES))
        b.hold = asyncio.Event()
        file = store.parent / "servers.txt"
        file.write_text(f"{a.url}={at(a).spool}\n{b.url}={line.url}")
        running = asyncio.create_task(run_with_file(store, file, data, request_timeout_seconds=4.0))
        await b.wait_for_requests(2)
        line.cut()
        a.hold.set()
        b.hold.set()
        write(file, a)
        async with asyncio.timeout(60):
            outcome = await running

    assert outcome.code == 0, outcome.message
    assert "its relay has not answered for" in outcome.log
    assert asked(a) == list(range(SAMPLES))


async def test_the_file_may_change_in_any_way_before_the_first_server_is_there(
    store: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(store, "a") as (a,):
        file = write(store.parent / "servers.txt", absent(store, "x"))
        running = asyncio.create_task(run_with_file(store, file, data))
        await wait_until(lambda: "waiting up to" in caplog.text)
        file.write_text("no such line\n")
        await wait_until(lambda: "no such line: not a URL" in caplog.text)
        for text in ("", "# nobody\n"):
            file.write_text(text)
            await asyncio.sleep(0.3)
        assert not running.done()
        write(file, a)
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert outcome.log.count("no such line: not a URL") == 1


async def test_a_file_that_names_nobody_at_the_start_is_told_at_once(
    store: Path, data: Path
) -> None:
    outcome = await run_with_file(store, write(store.parent / "servers.txt"), data)

    assert outcome.code == 2
    assert "servers.txt names no server" in outcome.message


async def test_a_commit_that_is_refused_when_a_server_leaves_is_no_fault_of_the_server(
    store: Path, data: Path
) -> None:
    async with serve(store, "a", "b") as (a, b):
        a.hold, b.hold = asyncio.Event(), asyncio.Event()
        a.held = b.held = set(range(20, SAMPLES))
        file = write(store.parent / "servers.txt", a, b)
        options = {"shard_rows": 8192, "span_samples": SAMPLES}  # one block
        running = asyncio.create_task(run_with_file(store, file, data, **options))
        await wait_until(lambda: {20, 21, 22, 23} <= set(asked(a, b)))
        claim = Store.open(store).runs_path / "claims" / "0"
        claim.write_text(re.sub(r'"run":"\w+"', '"run":"thief"', claim.read_text()))
        write(file, b)
        await asyncio.sleep(0.3)
        a.hold.set()
        async with asyncio.timeout(30):
            outcome = await running

    assert outcome.code == 3, outcome.message
    assert "taken over by run thief" in outcome.message
    assert f"server {a.url} is not used" not in outcome.log


async def test_a_server_gets_the_memory_that_one_before_it_has_left(
    store: Path, data: Path
) -> None:
    async with serve(store, "a", "b") as (a, b):
        give(a, 300_000)
        give(b, 300_000)
        a.hold, b.hold = asyncio.Event(), asyncio.Event()
        a.held = b.held = set(range(20, SAMPLES))
        file = write(store.parent / "servers.txt", a)
        running = asyncio.create_task(run_with_file(store, file, data, spool_budget_bytes=200_000))
        await wait_until(lambda: {20, 21} <= set(asked(a)))
        write(file, a, b)
        await b.wait_for_requests(2)
        write(file, b)
        a.hold.set()
        await wait_until(lambda: not left_in(a))
        b.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert outcome.status.spool_budget_bytes == 200_000


async def test_why_a_server_was_refused_that_is_named_no_more_is_not_why_the_run_ends(
    store: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(store, "a", "b") as (a, b):
        b.key = "secret"
        a.hold, a.held = asyncio.Event(), set(range(20, SAMPLES))
        file = write(store.parent / "servers.txt", a, b)
        running = asyncio.create_task(run_with_file(store, file, data, server_wait_seconds=1.0))
        await a.wait_for_requests(20)
        await wait_until(lambda: f"server {b.url} is not used" in caplog.text)
        write(file)
        outcome = await running

    assert (outcome.code, "servers.txt names none" in outcome.message) == (75, True)


async def test_servers_that_are_not_there_are_shown_from_the_first_contact_on(
    store: Path, data: Path
) -> None:
    one, two = absent(store, "x"), ServerAddress(url="http://127.0.0.1:2", spool=store.parent / "y")
    file = write(store.parent / "servers.txt", one, two)
    outcome = await run_with_file(store, file, data, server_wait_seconds=0.5)

    assert outcome.code == 75
    assert [(each.url, each.state) for each in outcome.status.servers] == [
        (one.url, "waiting"),
        (two.url, "waiting"),
    ]
    assert (outcome.status.server, outcome.status.spool) == (one.url, str(one.spool))


async def test_another_server_makes_the_store_where_the_first_one_breaks_its_handshake(
    store: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.asking, "PAUSES_SECONDS", (0.0, 0.0))
    async with serve(store, "a", "b") as (a, b):
        a.always = {SAMPLES: Fault.RESET}
        b.health_status = 503
        running = asyncio.create_task(run(store, [a, b], data))
        await wait_until(lambda: a.most_at_once)
        b.health_status = 200
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert f"server {a.url} is not used: handshake: no dump in 2 attempts" in outcome.log
    assert asked(b) == list(range(SAMPLES))


async def test_no_store_is_made_that_cannot_be_filled_where_another_server_is_to_make_it(
    store: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.asking, "PAUSES_SECONDS", (0.0, 0.0))
    async with serve(store, "a") as (a,), serve(store, "b", layers=(0, 1, 2, 3)) as (b,):
        a.always = {SAMPLES: Fault.RESET}
        b.health_status = 503
        running = asyncio.create_task(run(store, [a, b], data, spool_budget_bytes=80_000))
        await wait_until(lambda: a.most_at_once)
        b.health_status = 200
        outcome = await running

    assert outcome.code == 3, outcome.message
    assert "the spool budget is 80,000" in outcome.message
    assert not store.exists()


async def test_a_store_that_somebody_else_makes_meanwhile_is_no_fault_of_a_server(
    store: Path, data: Path
) -> None:
    async with serve(store, "a", "b") as (a, b):
        a.hold = b.hold = asyncio.Event()
        a.held = b.held = {SAMPLES}
        running = asyncio.create_task(run(store, [a, b], data))
        await wait_until(lambda: a.most_at_once or b.most_at_once)
        make_store(store, [3, 9])
        a.hold.set()
        outcome = await running

    assert outcome.code == 3, outcome.message
    assert "is not used" not in outcome.log
    assert min(a.most_at_once, b.most_at_once) == 0


async def test_a_server_whose_spool_cannot_be_written_joins_when_it_can(
    store: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(store, "a", "b") as (a, b):
        in_the_way = b.spool.directory.path / "client.json"
        in_the_way.mkdir()
        a.hold, a.held = asyncio.Event(), set(range(20, SAMPLES))
        running = asyncio.create_task(run(store, [a, b], data, max_in_flight=2))
        await wait_until(lambda: f"server {b.url} is still waited for: " in caplog.text)
        in_the_way.rmdir()
        await b.wait_for_requests(5)
        a.hold.set()
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert f"server {b.url} is still waited for: spool {at(b).spool} cannot be used" in outcome.log
    assert asked(a, b) == list(range(SAMPLES))


async def test_one_that_takes_long_to_prove_itself_is_not_given_up_for_one_that_is_absent(
    store: Path, data: Path
) -> None:
    async with serve(store, "a") as (a,):
        await run(store, [a], data)
        for chunk in (store / "complete").glob("c.*"):
            chunk.unlink()
        a.requests.clear()
        a.batching_seconds, x = 1.2, absent(store, "x")
        running = asyncio.create_task(
            run_here(store, a.url, at(a).spool, more_servers=(x,), server_wait_seconds=1.0)
        )
        await a.wait_for_requests(1)
        a.batching_seconds = 0.0
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert f"server {x.url} is still waited for" in outcome.log

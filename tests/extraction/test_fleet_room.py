"""Servers whose spools share memory, and spools that hold unlike much."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import extraction.attempts
from extraction.addresses import ServerAddress
from extraction.admission import AHEAD
from extraction.lane import spool_budgets
from extraction.spool import dump_bytes, headroom_bytes
from extraction.spool.directory import SpoolDirectory
from hsstore.store import Store
from tests.extraction.fake_model import Fault, fake_info
from tests.extraction.fake_server import serve_fake
from tests.extraction.fleets import (
    SAMPLES,
    all_have_asked,
    asked,
    give,
    run,
    serve,
    wait_until,
)
from tests.extraction.processes import verify

if TYPE_CHECKING:
    from pathlib import Path


async def test_servers_that_open_side_by_side_are_not_promised_the_same_memory(
    store: Path, data: Path
) -> None:
    async with serve(store, "a", "b") as servers:
        for server in servers:
            give(server, 300_000)
        running = asyncio.create_task(
            run(store, servers, data, spool_budget_bytes=200_000, max_in_flight=4)
        )
        await all_have_asked(*servers)
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert outcome.status.spool_budget_bytes <= 300_000
    assert all(server.requests for server in servers)


def test_mirrors_of_two_hosts_are_not_promised_the_same_memory_of_this_one(room: Path) -> None:
    addresses = []
    for host in ("gpu1", "gpu2"):
        path = SpoolDirectory.create(room / "mirrors" / host).path
        (path / "limit").write_text(str(1 << 60))
        url = f"http://{host}:30000"
        addresses.append(ServerAddress(url=url, spool=path, relay=f"http://{host}:31000"))
    here_bytes = headroom_bytes(room)

    first, second = spool_budgets(addresses, here_bytes * 3 // 4)
    assert second < here_bytes // 2 < first
    assert sum(spool_budgets(addresses, None)) < here_bytes * 3 // 4

    (addresses[0].spool / "limit").write_text("1000")
    assert spool_budgets(addresses, 4000) == [1000, 4000]
    same_host = [addresses[0], addresses[1].model_copy(update={"relay": "http://gpu1:31001"})]
    (addresses[1].spool / "limit").write_text("1000")
    assert spool_budgets(same_host, 800) == [800, 200]


async def test_a_server_without_room_for_any_dump_waits_for_it(store: Path, data: Path) -> None:
    async with serve(store, "a", "b") as (a, b):
        give(b, 1000)
        outcome = await run(store, [a, b], data, spool_budget_bytes=200_000)

    assert outcome.code == 0, outcome.message
    assert [one.state for one in outcome.status.servers] == ["up", "waiting"]
    assert "no room for its spool: it may take" in outcome.status.servers[1].message


@pytest.mark.parametrize(("layers", "code"), [((0, 3), 0), ((1, 3), 3)], ids=["ours", "other"])
async def test_what_fits_only_the_spool_of_one_that_is_loading_waits_until_it_is_known(
    store: Path, data: Path, layers: tuple[int, ...], code: int
) -> None:
    async with (
        serve(store, "small") as (small,),
        serve(store, "large", announced=False) as (large,),
    ):
        give(small, 20_000)
        running = asyncio.create_task(run(store, [small, large], data, spool_budget_bytes=200_000))
        await small.wait_for_requests(5)
        await asyncio.sleep(0.5)
        assert not running.done()
        large.spool.announce(replace(fake_info(large.spool, large.url), layers=layers))
        outcome = await running

    assert outcome.code == code, outcome.message
    assert not Store.open(store).completion().failed.any()


async def test_what_fits_only_the_spool_of_one_that_stays_away_is_left_pending(
    store: Path, data: Path, tmp_path: Path
) -> None:
    """The spool of the other one lies elsewhere: its room is its own."""
    async with serve(store, "large") as (large,), serve_fake(tmp_path / "s", SAMPLES) as small:
        give(small, 20_000)
        large.hold = asyncio.Event()
        running = asyncio.create_task(
            run(
                store,
                [large, small],
                data,
                max_in_flight=2,
                server_wait_seconds=1.0,
                spool_budget_bytes=200_000,
            )
        )
        await large.wait_for_requests(2)
        await small.wait_for_requests(2)
        await large.leave()
        outcome = await running

    assert outcome.code == 3, outcome.message
    assert "larger spools are gone" in outcome.message
    completion = Store.open(store).completion()
    assert completion.pending.any()
    assert not completion.failed.any()


async def test_what_fits_only_the_spool_of_one_that_is_away_holds_up_nothing_else(
    store: Path, data: Path, tmp_path: Path
) -> None:
    options = {"shard_rows": 8192, "span_samples": SAMPLES}  # one block
    async with serve(store, "large") as (large,), serve_fake(tmp_path / "s", SAMPLES) as small:
        give(small, 6_000)
        large.always = dict.fromkeys(range(SAMPLES), Fault.RESET)
        running = asyncio.create_task(
            run(store, [large, small], data, max_in_flight=2, spool_budget_bytes=200_000, **options)
        )
        await large.wait_for_requests(2)
        large.health_status = 503
        lengths = Store.open(store).length.tolist()
        fit = {s for s, rows in enumerate(lengths) if dump_bytes(rows, small.info) <= 6_000}
        assert len(fit) < SAMPLES - 2 * AHEAD
        await wait_until(lambda: fit <= set(asked(small)))
        large.health_status, large.always = 200, {}
        outcome = await running

    assert outcome.code == 0, outcome.message
    verify(store, SAMPLES)


async def test_a_server_is_full_of_what_another_holds_until_that_is_given_back(
    store: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.attempts, "MAX_PAUSE_SECONDS", 0.05)
    one_block = {"shard_rows": 8192, "span_samples": SAMPLES}
    async with serve(store, "full", "b") as (full, b):
        full.always = dict.fromkeys(range(SAMPLES), Fault.FULL)
        running = asyncio.create_task(run(store, [full, b], data, max_in_flight=2, **one_block))
        await b.wait_for_requests(40)
        await wait_until(lambda: not list(b.spool.directory.path.glob("*.safetensors")))
        full.always = {}
        outcome = await running

    assert outcome.code == 0, outcome.message
    assert f"server {full.url} is not used" not in outcome.log
    verify(store, SAMPLES)

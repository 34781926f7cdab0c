"""A server without its plugin, with another spool, or behind a router: told within seconds."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import extraction.requester
import extraction.server_wait
from extraction.options import DataOptions, ExtractOptions
from extraction.server_link import ServerLink
from extraction.server_wait import wait_for_server
from extraction.status import StatusPage
from extraction.worker import Worker
from hsstore.errors import InterruptedRunError, RefusedError
from hsstore.store import Store
from tests.extraction.balancer import balance
from tests.extraction.fake_model import Fault, fake_info
from tests.extraction.fake_server import serve_fake
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from pathlib import Path


PATIENCE_SECONDS = 110
"""Below `request_timeout_seconds`, after which everything is told."""


@pytest.fixture
def few(room: Path) -> Path:
    """Give three samples of 5 tokens."""
    return write_data(room / "waited.jsonl", [5, 5, 5])


async def test_a_server_whose_plugin_did_not_load_is_refused_with_what_to_check(
    store: Path, few: Path
) -> None:
    async with serve_fake(store.parent / "another", 3) as server:
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_here(store, server.url, store.parent / "spool", few)

    assert outcome.code == 3
    assert "its hsstore plugin has not announced itself" in outcome.message
    assert "no spool at" in outcome.message
    for cause in ("python -m hsstore_sglang", "HSSTORE_SPOOL", "--spool", "/dev/shm"):
        assert cause in outcome.message
    assert not store.exists()


async def test_a_spool_that_its_server_left_behind_is_told_from_one_that_is_loading(
    store: Path,
) -> None:
    async with serve_fake(store.parent / "spool", 3, announced=False) as server:
        async with ServerLink(server.url, 1) as link:
            with pytest.raises(InterruptedRunError) as caught:
                await wait_for_server(link, server.spool.directory.path, 2, unannounced_seconds=0.3)
        loading = str(caught.value)
        server.spool.directory.path.joinpath("hs-keep").touch()  # else it goes with its server
        async with serve_fake(store.parent / "another", 3) as other:
            server.spool.close()
            left = await refusal(other.url, server.spool.directory.path)

    assert "is still loading" in loading
    assert "a longer --server-wait" in loading
    assert "is not running" in left


async def refusal(url: str, spool: Path) -> str:
    """Wait for a server that never comes."""
    async with ServerLink(url, 1) as link:
        with pytest.raises(RefusedError) as caught:
            await wait_for_server(link, spool, 100, unannounced_seconds=0.3)
    return str(caught.value)


async def test_a_server_that_announces_itself_a_little_late_is_taken(store: Path) -> None:
    async with (
        serve_fake(store.parent / "spool", 3, announced=False) as server,
        ServerLink(server.url, 1) as link,
    ):
        waiting = asyncio.create_task(
            wait_for_server(link, store.parent / "spool", 100, unannounced_seconds=0.1)
        )
        await asyncio.sleep(2)  # it reads the weights' headers
        assert not waiting.done()
        server.spool.announce(fake_info(server.spool, server.url))
        info = await waiting

    assert info.instance == server.spool.instance


async def test_requests_of_the_handshake_are_in_flight_too(store: Path, few: Path) -> None:
    """Else a slow first forward looks as if the client did nothing."""
    async with serve_fake(store.parent / "spool", 3) as server:
        server.hold, server.held = asyncio.Event(), {3}
        page = StatusPage.create(store.parent)
        options = ExtractOptions(
            store=store,
            server=server.url,
            spool=server.spool.directory.path,
            data=DataOptions(files=(few,)),
        )
        run = asyncio.create_task(Worker(options, page).main())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (status := page.read()) is None or not status.in_flight:  # noqa: ASYNC110  # a page is polled
                    await asyncio.sleep(0.05)
            server.hold.set()
            code = await run
        finally:
            page.remove()

    assert status.phase != "extracting"
    assert code == 0


async def test_while_nothing_answers_it_says_what_it_waits_for(
    store: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.server_wait, "SAY_SECONDS", 0.2)

    outcome = await run_here(
        store, "http://127.0.0.1:1", store.parent / "none", few, server_wait_seconds=1.5
    )

    assert outcome.code == InterruptedRunError.exit_code
    assert "still waiting: http://127.0.0.1:1: Cannot connect" in outcome.log
    assert "no spool at" in outcome.log


async def test_a_server_that_comes_back_without_its_plugin_is_refused(
    store: Path, few: Path
) -> None:
    async with serve_fake(store.parent / "spool", 3) as server:
        path = server.spool.directory.path
        server.hold = asyncio.Event()
        server.always = dict.fromkeys(range(3), Fault.RESET)
        run = asyncio.create_task(run_here(store, server.url, path, few))
        await server.wait_for_requests(3)
        server.spool.close()
        server.hold.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run

    assert outcome.code == 3
    assert "its hsstore plugin has not announced itself" in outcome.message


async def test_an_answer_without_a_dump_ends_the_handshake_within_seconds(
    store: Path, few: Path
) -> None:
    async with serve_fake(store.parent / "spool", 3) as server:
        server.always = {3: Fault.NO_DUMP}
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 3
    assert "s ago, no dump came. Either the server runs without hsstore's plugin" in outcome.message
    assert "a router or load balancer at this URL" in outcome.message


async def test_a_handshake_waits_on_while_the_server_has_captures_to_write(
    store: Path, few: Path
) -> None:
    async with serve_fake(store.parent / "spool", 3) as server:
        server.faults[3] = [Fault.LATE_DUMP]
        server.queue_depth = 1

        outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 0, outcome.message


async def test_a_dump_that_is_missing_in_mid_run_is_told_before_the_request_expires(
    store: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.requester, "WRITTEN_SECONDS", 3.0)
    async with serve_fake(store.parent / "spool", 3) as server:
        server.faults[1] = [Fault.NO_DUMP]

        async def beat() -> None:
            while True:
                server.spool.beat(forwards=100, queue_depth=0)
                await asyncio.sleep(0.1)

        beating = asyncio.create_task(beat())
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_here(store, server.url, server.spool.directory.path, few)
        beating.cancel()

    assert outcome.code == 0, outcome.message
    assert "sample 1 is asked for again: the server answered" in outcome.log


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/workers", {"workers": [{"id": "a"}, {"id": "b"}], "total": 2}),
        ("/list_workers", {"urls": ["http://a", "http://b"]}),
    ],
)
async def test_a_router_of_sglang_is_refused_by_name(
    store: Path, few: Path, path: str, answer: Any
) -> None:
    async with serve_fake(store.parent / "spool", 3, lists={path: answer}) as server:
        outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 3
    assert "is a router in front of 2 servers" in outcome.message
    assert not store.exists()


async def test_a_router_in_front_of_one_server_is_warned_of(store: Path, few: Path) -> None:
    lists = {"/workers": {"workers": [{"id": "a"}]}}
    async with serve_fake(store.parent / "spool", 3, lists=lists) as server:
        outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 0, outcome.message
    assert "is a router (1 servers): better give the server's own URL" in outcome.log


async def test_a_balancer_is_refused_as_well_when_a_store_is_resumed(
    store: Path, few: Path
) -> None:
    async with (
        serve_fake(store.parent / "spool", 3) as server,
        serve_fake(store.parent / "another", 3) as other,
    ):
        spool = server.spool.directory.path
        await run_here(store, server.url, spool, few)
        for chunk in (store / "complete").glob("c.*"):
            chunk.unlink()
        server.requests.clear()
        async with balance(other.url, server.url) as url:  # health there, golden request here
            async with asyncio.timeout(PATIENCE_SECONDS):
                outcome = await run_here(store, url, spool)

    assert outcome.code == 3
    assert "The dump of the request before did come" in outcome.message
    assert "a router or load balancer at this URL spreads requests" in " ".join(
        outcome.message.split()
    )
    assert server.requests == []


async def test_warnings_of_the_server_are_told_and_kept(store: Path, few: Path) -> None:
    flags = {"warnings": ["CUDA is experimental"], "tp_size": 2}
    async with serve_fake(store.parent / "spool", 3, flags=flags) as server:
        outcome = await run_here(store, server.url, server.spool.directory.path, few)

    assert outcome.code == 0, outcome.message
    assert "server: CUDA is experimental" in outcome.log
    assert Store.open(store).runs()[0].server_flags == flags

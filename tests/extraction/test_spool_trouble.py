"""Spools that have less room than they should, and spools that disappear."""
# looking at files in shared memory blocks nothing

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from extraction.options import DataOptions, ExtractOptions
from extraction.server_link import ServerLink
from extraction.session import open_session
from extraction.spool import RequestId, SpoolServer, headroom_bytes
from hsstore.store import Store
from tests.extraction.fake_model import HIDDEN, fake_info, fake_states
from tests.extraction.fake_server import serve_fake
from tests.extraction.mounts import MIB, fill, small_tmpfs
from tests.extraction.processes import left_claims
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.extraction.fake_server import FakeServer

ROW_BYTES = 3 * HIDDEN * 2
ONE_BLOCK: dict[str, Any] = {"shard_rows": 1 << 20, "request_timeout_seconds": 60}
"""So large that no dump would be given back before the end."""


@pytest.fixture
def spool() -> Iterator[Path]:
    """Give a spool on a file system of its own, of 4 MiB."""
    with small_tmpfs(4 * MIB) as path:
        yield path / "spool"


def check_complete(path: Path, server: FakeServer) -> None:
    """Every sample is what the server computed."""
    store = Store.open(path)
    assert store.completion().complete.all()
    for sample in range(len(store)):
        expected = fake_states(store.input_ids(sample), server.info)
        np.testing.assert_array_equal(store.payload.read(sample), expected)


async def test_a_spool_that_somebody_else_fills_still_lets_the_run_end(
    spool: Path, store: Path, room: Path
) -> None:
    data = write_data(room / "filled.jsonl", [400] * 6)
    async with serve_fake(spool, 6) as server:
        server.hold = asyncio.Event()
        run = asyncio.create_task(
            run_here(store, server.url, spool, data, max_in_flight=3, **ONE_BLOCK)
        )
        await server.wait_for_requests(3)
        reserve = 4 * MIB // 16
        fill(spool.parent, reserve + 3 * 400 * ROW_BYTES)  # for two dumps, where all would do
        server.hold.set()
        async with asyncio.timeout(50):
            outcome = await run

        assert outcome.code == 0, outcome.message
        assert outcome.status.spool_budget_bytes > 6 * 400 * ROW_BYTES
        assert "full: " in outcome.log
        check_complete(store, server)


async def test_a_spool_full_of_a_dead_runs_dumps_is_room_that_the_next_run_may_use(
    spool: Path, store: Path, room: Path
) -> None:
    data = write_data(room / "dead.jsonl", [1500] * 20 + [10_000])
    async with serve_fake(spool, 21) as server:
        assert (await run_here(store, server.url, spool, data, **ONE_BLOCK)).code == 0
        opened = Store.open(store)
        for chunk in (store / "complete").glob("c.*"):
            chunk.unlink()
        server.leave_dumps(opened.spec.store, {s: opened.input_ids(s) for s in range(20)})
        assert headroom_bytes(spool) < 10_000 * ROW_BYTES
        server.requests.clear()

        async with asyncio.timeout(50):
            outcome = await run_here(store, server.url, spool, **ONE_BLOCK)

        assert outcome.code == 0, outcome.message
        assert "20 are used and 0 were removed" in outcome.log
        assert 20 in {rid.sample for rid in server.requests}
        check_complete(store, server)
        assert list((spool / "free").iterdir()) == []


@pytest.mark.parametrize("in_flight", [1, 8])
async def test_a_spool_that_is_removed_ends_the_run_which_says_so(
    store: Path, data: Path, in_flight: int
) -> None:
    spool = store.parent / "spool"
    async with serve_fake(spool, 61) as server:
        server.hold, server.held = asyncio.Event(), set(range(20, 61))
        run = asyncio.create_task(run_here(store, server.url, spool, data, max_in_flight=in_flight))
        await server.wait_for_requests(20)
        shutil.rmtree(spool)
        server.hold.set()
        async with asyncio.timeout(60):
            outcome = await run

    completion = Store.open(store).completion()
    assert outcome.code == 75, outcome.message
    assert "the spool cannot be read any more" in outcome.message
    assert "restart the server, then run again" in outcome.message
    assert completion.complete.any()
    assert left_claims(store) == []


async def test_a_session_whose_end_is_cancelled_leaves_nothing_in_the_spool(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    path, ids = tmp_path / "spool", np.ones(5, np.int32)
    rid = RequestId("run", 0, 1, 5)
    options = ExtractOptions(
        store=tmp_path / "s", server=url, spool=path, data=DataOptions(files=())
    )

    async def use(link: ServerLink) -> None:
        async with open_session(options, path, link, "run", "store", lambda _: None) as session:
            fetching = asyncio.create_task(session.requester.fetch(rid, ids))
            await asked.wait()
            fetching.cancel()
            await asyncio.wait({fetching})
            server.put(str(rid), 0, fake_states(ids, info), ids)

    with SpoolServer(path) as server:
        info = fake_info(server, url)
        server.announce(info)
        async with silent, ServerLink(url, 8) as link:
            using = asyncio.create_task(use(link))
            dump = server.directory.finished(rid)
            while not dump.exists():  # noqa: ASYNC110  # a file has no event
                await asyncio.sleep(0.01)
            using.cancel()  # it waits until the server has heard that nobody wants this
            await asyncio.wait({using})
        assert using.cancelled()
        assert not dump.exists()

"""A server that is back and takes its time until it announces itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.extraction.fake_model import Fault
from tests.extraction.fake_server import serve_fake
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_server_that_answers_and_is_not_announced_is_not_called_silent(
    store: Path, room: Path
) -> None:
    data = write_data(room / "revived.jsonl", [5, 5, 5])
    async with serve_fake(store.parent / "spool", 3) as server:
        server.hold = asyncio.Event()
        server.always = dict.fromkeys(range(3), Fault.RESET)
        path = server.spool.directory.path
        run = asyncio.create_task(run_here(store, server.url, path, data, server_wait_seconds=3.0))
        await server.wait_for_requests(3)
        server.spool.retract()
        server.hold.set()
        outcome = await run

    assert outcome.code == 75
    assert "did not answer" not in outcome.message
    assert f"the server of spool {path} is still loading; see in its log" in outcome.message

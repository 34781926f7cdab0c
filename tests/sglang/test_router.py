"""SGLang's own router, the published wheel, in front of one server and of two."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import ClientError, ClientSession

from tests.extraction.fake_server import serve_fake
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data
from tests.sglang.serving import PYTHON

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_START = """
import sys
sys.modules["sglang"] = None  # it would only be traced with that, and takes seconds
from sglang_router.launch_router import main
main()
"""
READY_SECONDS = 120


@asynccontextmanager
async def route(*servers: str) -> AsyncIterator[str]:
    """Start a router; it answers long before it has found its servers."""
    ports = ("--port", str(_free_port()), "--prometheus-port", str(_free_port()))
    urls = ("--worker-urls", *servers, "--log-level", "error")
    router = await asyncio.create_subprocess_exec(PYTHON, "-c", _START, *ports, *urls)
    url = f"http://127.0.0.1:{ports[1]}"
    try:
        async with asyncio.timeout(READY_SECONDS), ClientSession() as session:
            while await _count(session, url) != len(servers):  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.1)
        yield url
    finally:
        router.kill()
        await router.wait()


async def _count(session: ClientSession, url: str) -> int:
    try:
        async with session.get(f"{url}/workers") as answer:
            return int((await answer.json())["total"])
    except ClientError:
        return 0


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def test_a_router_in_front_of_two_servers_is_refused_by_name(
    new_store: Path, room: Path
) -> None:
    data = write_data(room / "routed.jsonl", [5, 5, 5])
    async with (
        serve_fake(new_store.parent / "spool", 3) as server,
        serve_fake(new_store.parent / "another", 3) as other,
        route(server.url, other.url) as url,
    ):
        outcome = await run_here(new_store, url, server.spool.directory.path, data)

    assert outcome.code == 3
    assert "is a router in front of 2 servers" in outcome.message
    assert not new_store.exists()


async def test_a_router_in_front_of_one_server_is_warned_of(new_store: Path, room: Path) -> None:
    data = write_data(room / "routed-too.jsonl", [5, 5, 5])
    async with (
        serve_fake(new_store.parent / "spool", 3) as server,
        route(server.url) as url,
    ):
        outcome = await run_here(new_store, url, server.spool.directory.path, data)

    assert outcome.code == 0, outcome.message
    assert "better give the server's own URL" in outcome.log

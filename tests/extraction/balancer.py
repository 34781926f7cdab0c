"""A load balancer that goes round."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import ClientSession, web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def balance(*urls: str) -> AsyncIterator[str]:
    """Serve as a load balancer does that goes round: one server after the other."""
    turn = itertools.cycle(urls)

    async def forward(request: web.Request) -> web.Response:
        url = f"{next(turn)}{request.path}"
        async with (
            ClientSession() as session,
            session.request(request.method, url, data=await request.read()) as answer,
        ):
            return web.Response(body=await answer.read(), status=answer.status)

    balancer = web.Application()
    balancer.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(balancer, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()

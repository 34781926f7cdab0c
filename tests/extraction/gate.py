"""A way to a real server that lets so many samples through and holds the others until it is opened.

However fast the machine is, a run comes to a stand there, and a test has the time that it needs.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from extraction.spool import RequestId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.extraction.processes import Serving


class Gate:
    """What `Extraction` takes for the server.

    Attributes
    ----------
    url : str
    spool : Path
        The server's own.
    passed : int
        Samples that were let through.
    answered : int
        Those of them that the server has answered.
    """

    def __init__(self, server: Serving, samples: int, count: int) -> None:
        self.url = ""
        self.spool: Path = server.spool
        self.passed = self.answered = 0
        self._to, self._samples, self._count = server.url, samples, count
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()

    def open(self) -> None:
        """Let everything through, what is held too."""
        self._loop.call_soon_threadsafe(self._open.set)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve from a thread."""
        runner = self._loop.run_until_complete(self._start())
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.run_until_complete(runner.cleanup())
            self._loop.close()

    async def _start(self) -> web.AppRunner:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._forward)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _forward(self, request: web.Request) -> web.Response:
        is_sample = await self._is_sample(request)
        if is_sample and self.passed >= self._count:
            await self._open.wait()
        self.passed += is_sample
        try:
            async with (
                ClientSession(timeout=ClientTimeout()) as session,
                session.request(
                    request.method, f"{self._to}{request.path}", data=await request.read()
                ) as answer,
            ):
                response = web.Response(body=await answer.read(), status=answer.status)
        except ClientError:  # as the server itself would
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        self.answered += is_sample
        return response

    async def _is_sample(self, request: web.Request) -> bool:
        if request.path != "/generate":
            return False
        rid = RequestId.parse((await request.json())["rid"])
        return rid is not None and rid.sample < self._samples


@contextmanager
def gated(server: Serving, samples: int, count: int) -> Iterator[Gate]:
    """Have a gate before a server of a store of so many samples."""
    gate = Gate(server, samples, count)
    with gate.serving():
        yield gate

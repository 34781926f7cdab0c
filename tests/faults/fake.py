"""The fake server in a thread of its own, for runs with the real commands and processes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.extraction.fake_server import FakeServer, serve_fake

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path


class Fake:
    """A fake server that serves from another thread.

    Attributes
    ----------
    url : str
    spool : Path
    server : FakeServer
        Its `faults`, `always` and `batching_seconds` may be changed from here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, server: FakeServer) -> None:
        self._loop, self.server = loop, server
        self.url = server.url
        self.spool: Path = server.spool.directory.path

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the server's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def hold(self) -> None:
        """Answer nothing from now on; `release` lets everything go on."""
        self.server.hold = asyncio.Event()

    def release(self) -> None:
        """Answer again."""

        async def go_on() -> None:
            held, self.server.hold = self.server.hold, None
            if held is not None:
                held.set()

        self.run(go_on())

    def slowly(self, seconds: float) -> None:
        """Let every request take so long."""
        self.server.batching_seconds = seconds

    def wait_for_requests(self, count: int) -> None:
        """Wait until so many samples were asked for."""
        self.run(self.server.wait_for_requests(count))


@contextmanager
def serving(spool: Path, samples: int, **info: Any) -> Iterator[Fake]:
    """Serve a store of so many samples; `info` are fields of `ServerInfo`."""
    ready: list[Fake] = []
    started, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with serve_fake(spool, samples, **info) as server:
            ready.append(Fake(asyncio.get_running_loop(), server))
            started.set()
            await stop.wait()

    def main() -> None:
        try:
            asyncio.run(serve())
        finally:
            started.set()

    thread = threading.Thread(target=main)
    thread.start()
    try:
        started.wait()
        yield ready[0]
    finally:
        if ready:
            ready[0]._loop.call_soon_threadsafe(stop.set)
        thread.join(30)

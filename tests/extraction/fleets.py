"""Several servers of one run, what a servers file says of them, and what the run says of them."""
# looking at files in shared memory blocks nothing

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from extraction.addresses import ServerAddress
from tests.extraction.fake_server import FakeServer, serve_fake
from tests.extraction.running import Outcome, run_here

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

SAMPLES = 61
PATIENCE_SECONDS = 60.0


@asynccontextmanager
async def serve(
    store: Path, *names: str, samples: int = SAMPLES, **changes: Any
) -> AsyncIterator[list[FakeServer]]:
    """Serve a store of so many samples, with a spool of each name beside it."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(serve_fake(store.parent / name, samples, **changes))
            for name in names
        ]


def at(server: FakeServer) -> ServerAddress:
    """Return where a server is."""
    return ServerAddress(url=server.url, spool=server.spool.directory.path)


async def run(
    store: Path, servers: Iterable[FakeServer], data: Path | None, **options: Any
) -> Outcome:
    """Run with all these servers."""
    first, *more = map(at, servers)
    return await run_here(store, first.url, first.spool, data, more_servers=tuple(more), **options)


async def run_with_file(store: Path, file: Path, data: Path, **options: Any) -> Outcome:
    """Run with the servers that a file names."""
    return await run_here(
        store, "", store.parent / "x", data, servers_file=file, max_in_flight=2, **options
    )


def write(file: Path, *servers: FakeServer | ServerAddress) -> Path:
    """Name servers in a file."""
    named = (one if isinstance(one, ServerAddress) else at(one) for one in servers)
    lines = (f"{one.url}={one.spool}  # one\n" for one in named)
    file.write_text("# who shares the work\n\n" + "".join(lines))
    return file


def absent(store: Path, name: str) -> ServerAddress:
    """Return where no server is."""
    return ServerAddress(url="http://127.0.0.1:1", spool=store.parent / name)


def give(server: FakeServer, room_bytes: int) -> None:
    """Leave a spool so much room and no more, whatever its memory has."""
    (server.spool.directory.path / "limit").write_text(str(room_bytes))


def asked(*servers: FakeServer) -> list[int]:
    """Return all samples that were asked for, sorted."""
    return sorted(rid.sample for rid in chain(*(server.requests for server in servers)))


async def wait_until(condition: Callable[[], object]) -> None:
    """Poll until something is true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  # what is looked at has no event
            await asyncio.sleep(0.01)


async def all_have_asked(*servers: FakeServer) -> None:
    """Have each answer for samples only when all were asked for one, whoever came first."""
    hold = asyncio.Event()
    for server in servers:
        server.hold = hold
    for server in servers:
        await server.wait_for_requests(1)
    hold.set()


def left_in(server: FakeServer) -> set[str]:
    """Return what lies in a spool beside what is the server's own."""
    own = {"server.lock", "server.json", "heartbeat", "free", "limit"}
    return {path.name for path in server.spool.directory.path.iterdir()} - own

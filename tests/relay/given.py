"""A server's spool, a relay in front of it, a mirror behind that, and a line that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import numpy as np

from extraction.relay.mirror import Mirror
from extraction.relay.serve import RelayOptions, relaying
from extraction.relay.wire import RelayAddress
from extraction.spool import ClientInfo, RequestId, SpoolServer
from tests.spool.given import HIDDEN, SLOTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import numpy.typing as npt

    from extraction.spool import SpoolClient

RUN = "0123456789ab"
STORE = "store-uuid"
TOKEN = "correct-horse"
CLIENT = ClientInfo(RUN, STORE)


def states_of(rid: RequestId) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int32]]:
    """Return random states (rows, slots, hidden) and tokens that follow from the request."""
    random = np.random.default_rng([rid.sample, rid.rows])
    hidden = random.integers(0, 1 << 16, (rid.rows, SLOTS, HIDDEN), dtype=np.uint16)
    return hidden, random.integers(0, 1 << 31, rid.rows, dtype=np.int32)


def capture(server: SpoolServer, rid: RequestId, *, rows: int | None = None) -> None:
    """Let the server capture a request, or its first rows only."""
    hidden, tokens = states_of(rid)
    server.put(str(rid), 0, hidden[:rows], tokens[:rows])


def assert_same(spool: SpoolClient, rid: RequestId) -> None:
    """Check that the dump which lies here is what the server captured."""
    hidden, tokens = states_of(rid)
    with spool.open_dump(rid) as dump:
        np.testing.assert_array_equal(dump.hidden, hidden)
        np.testing.assert_array_equal(dump.input_ids, tokens)


def request(sample: int, rows: int = 10, *, run: str = RUN) -> RequestId:
    """Name a request."""
    return RequestId(run, sample, 1, rows)


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # of all sorts
            await asyncio.sleep(0.01)


@asynccontextmanager
async def relay(spool: Path, **options: object) -> AsyncIterator[str]:
    """Have a relay with the usual token; gives its URL."""
    given = {"port": 0, "token": TOKEN, **options}
    async with relaying(RelayOptions(spool, **given)) as url:  # type: ignore[arg-type]
        yield url


@asynccontextmanager
async def mirror(url: str, path: Path, token: str = TOKEN) -> AsyncIterator[Mirror]:
    """Have a mirror that has heard of its relay."""
    async with Mirror(RelayAddress(url, token), path) as one:
        await one.connect(30)
        yield one


class Line:
    """A way to a relay that can be cut, and that breaks after so many bytes.

    Attributes
    ----------
    url : str
    carried_bytes : int
        What has come from the relay.
    """

    def __init__(self, target: str) -> None:
        self._target = _host_and_port(target)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: list[asyncio.Task[None]] = []
        self.url = ""
        self.carried_bytes = 0
        self.connections = 0
        self.break_after_bytes = 0
        """Break a connection when so much has come through it; 0: never."""
        self.is_cut = False
        self.spoil_at = -1
        """Change the byte at this place of the first answer that is so long."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were aborted close

    def cut(self) -> None:
        """Break all connections, and let none through until `mend`."""
        self.is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def lead_to(self, target: str) -> None:
        """Lead to somebody else from now on."""
        self.cut()
        self._target = _host_and_port(target)
        self.mend()

    def mend(self) -> None:
        """Let connections through again."""
        self.is_cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._serving += [task] if task else []
        if self.is_cut:
            writer.transport.abort()
            return
        self.connections += 1
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            self._open |= {writer, far_writer}
            ways = [self._pump(reader, far_writer), self._pump(far_reader, writer, counts=True)]
            tasks = [asyncio.create_task(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._open -= {writer, far_writer}
            far_writer.transport.abort()
        writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool = False
    ) -> None:
        carried_bytes = 0
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                carried_bytes += len(piece)
                if counts:
                    self.carried_bytes += len(piece)
                    piece = self._spoil(piece, carried_bytes)
                writer.write(piece)
                await writer.drain()
                if counts and 0 < self.break_after_bytes <= carried_bytes:
                    return

    def _spoil(self, piece: bytes, carried_bytes: int) -> bytes:
        at = self.spoil_at - (carried_bytes - len(piece))
        if self.spoil_at < 0 or not 0 <= at < len(piece):
            return piece
        self.spoil_at = -1
        return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]


def _host_and_port(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port

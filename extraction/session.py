"""A client's time with one server: its spool held, its dumps watched, its requests sent."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extraction.requester import Requester
from extraction.server_wait import spool_errors
from extraction.spool import ClientInfo, SpoolClient
from extraction.spool_watch import SpoolWatch
from hsstore.errors import InterruptedRunError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from extraction.options import ExtractOptions
    from extraction.server_link import ServerLink
    from extraction.spool import ServerInfo

ABORT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Session:
    """What a handshake needs, and a lane is made of."""

    spool: SpoolClient
    requester: Requester


@asynccontextmanager
async def open_session(
    options: ExtractOptions,
    spool: Path,
    link: ServerLink,
    run: str,
    store_uuid: str,
    check_server: Callable[[ServerInfo], None],
) -> AsyncIterator[Session]:
    """Hold the spool for a while; at the end nothing of this run is left in it.

    Raises
    ------
    RefusedError
        Another client holds the spool, or it is another user's.
    """
    link.up.clear()
    async with _hold(link, spool, ClientInfo(run, store_uuid), options) as client:
        watch = SpoolWatch(client)
        watching = asyncio.create_task(watch.run())
        requester = Requester(
            link,
            client,
            watch,
            timeout_seconds=options.request_timeout_seconds,
            server_wait_seconds=options.server_wait_seconds,
            check_server=check_server,
        )
        try:
            yield Session(client, requester)
        finally:
            try:
                await requester.abort_all(ABORT_SECONDS)
            finally:  # also of an end that is itself cancelled
                try:
                    await requester.close()
                finally:
                    watching.cancel()
                    client.cleanup(run)


@asynccontextmanager
async def _hold(
    link: ServerLink, path: Path, client: ClientInfo, options: ExtractOptions
) -> AsyncIterator[SpoolClient]:
    """Hold a spool of this machine, or one that is mirrored here."""
    wait_seconds = options.server_wait_seconds
    async with AsyncExitStack() as stack:
        with spool_errors():
            try:
                mirror = await link.mirror(wait_seconds)
                if mirror is None:
                    spool = stack.enter_context(SpoolClient(path, client))
                else:
                    held = mirror.hold(client, wait_seconds, options.spool_budget_bytes)
                    spool = await stack.enter_async_context(held)
            except OSError as error:  # of one server's spool: others may have theirs
                raise InterruptedRunError(
                    f"spool {path} cannot be used: {error}; run again when that is mended"
                ) from error
            yield spool

"""A client's time with one server: its spool held, its dumps watched, its requests sent."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extraction.requester import Requester
from extraction.spool import (
    ClientInfo,
    NoServerError,
    SpoolBusyError,
    SpoolClient,
    SpoolForeignError,
    SpoolMissingError,
    SpoolView,
)
from extraction.spool_watch import SpoolWatch
from hsstore.errors import InterruptedRunError, RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from extraction.options import ExtractOptions
    from extraction.server_link import ServerLink
    from extraction.spool import ServerInfo

ABORT_SECONDS = 1.0
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Session:
    """What the pipeline works with."""

    spool: SpoolClient
    requester: Requester


@asynccontextmanager
async def open_session(
    options: ExtractOptions,
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
    with spool_errors(), SpoolClient(options.spool, ClientInfo(run, store_uuid)) as spool:
        watch = SpoolWatch(spool)
        watching = asyncio.create_task(watch.run())
        requester = Requester(
            link,
            spool,
            watch,
            timeout_seconds=options.request_timeout_seconds,
            server_wait_seconds=options.server_wait_seconds,
            check_server=check_server,
        )
        try:
            yield Session(spool, requester)
        finally:
            await requester.abort_all(ABORT_SECONDS)
            await requester.close()
            watching.cancel()
            spool.cleanup(run)


def wait_for_server(spool: Path, timeout_seconds: float) -> ServerInfo:
    """Wait until a server has its model loaded and serves this spool. Blocks.

    Raises
    ------
    InterruptedRunError
        None came in time.
    RefusedError
        The spool is another user's.
    """
    deadline = time.monotonic() + timeout_seconds
    with spool_errors():
        while True:
            try:
                return SpoolView(spool).wait_for_server(deadline - time.monotonic())
            except SpoolMissingError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(POLL_SECONDS)


@contextmanager
def spool_errors() -> Iterator[None]:
    """Translate the spool's errors into those of hsstore."""
    try:
        yield
    except (SpoolBusyError, SpoolForeignError) as error:
        raise RefusedError(str(error)) from error
    except (SpoolMissingError, NoServerError) as error:
        raise InterruptedRunError(f"{error}; start the server, then run again") from error

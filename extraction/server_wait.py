"""Wait for a server to announce itself; find out within seconds when it never will."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from extraction.server_link import CONNECT_SECONDS, SAY_SECONDS
from extraction.spool import (
    NoServerError,
    SpoolBusyError,
    SpoolForeignError,
    SpoolMissingError,
    SpoolView,
)
from hsstore.errors import InterruptedRunError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from extraction.server_link import ServerLink
    from extraction.spool import ServerInfo

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
UNANNOUNCED_SECONDS = 15.0
"""A server announces itself before it answers `/health`: so long is generous."""


async def wait_for_server(
    link: ServerLink,
    spool: Path,
    timeout_seconds: float,
    unannounced_seconds: float = UNANNOUNCED_SECONDS,
) -> ServerInfo:
    """Wait until a server has its model loaded and serves this spool.

    Parameters
    ----------
    unannounced_seconds : float
        How long the URL may answer while nobody holds the spool. Whoever does may take as long as
        the whole wait: it reads the weights' headers before it announces itself.

    Raises
    ------
    InterruptedRunError
        None came in time, and the URL does not answer either.
    RefusedError
        The spool is another user's; or the URL answers, and what answers does not serve the spool,
        is a router in front of several servers, or lets nobody in.
    """
    loop = asyncio.get_running_loop()
    began = said = loop.time()
    answering_since: float | None = None
    with spool_errors():
        await link.mirror(timeout_seconds)
    while True:
        with spool_errors():
            found = await asyncio.to_thread(_look, spool)
        if not isinstance(found, _Absent):
            return found
        now = loop.time()
        left = began + timeout_seconds - now
        if left <= 0:
            raise InterruptedRunError(f"{found.message}; {found.advice}")
        trouble = await link.trouble(min(left, CONNECT_SECONDS))
        if trouble:
            answering_since = None
        elif answering_since is None:
            answering_since = loop.time()
            await refuse_router(link)
        elif not found.held and now - answering_since > unannounced_seconds:
            raise RefusedError(_unannounced(link.url, spool, found, now - answering_since))
        if now - said >= SAY_SECONDS:
            log.info("still waiting: %s; %s", trouble or f"{link.url} answers", found.message)
            said = now
        await asyncio.sleep(min(POLL_SECONDS, left))


async def refuse_router(link: ServerLink) -> None:
    """Refuse a URL behind which several servers share the requests: a spool belongs to one.

    Raises
    ------
    RefusedError
    """
    servers = await link.routed_servers()
    if servers is None:
        return
    if servers > 1:
        raise RefusedError(
            f"{link.url} is a router in front of {servers} servers, and a spool belongs to one: "
            "give the URL of the server itself"
        )
    log.warning("%s is a router (%d servers): better give the server's own URL", link.url, servers)


def relay_warnings(info: ServerInfo) -> None:
    """Log what the server's plugin warns of; its flags are recorded with the run as they are."""
    warnings = info.flags.get("warnings")
    for warning in warnings if isinstance(warnings, list) else ():
        log.warning("server: %s", warning)


@contextmanager
def spool_errors() -> Iterator[None]:
    """Translate the spool's errors into those of hsstore."""
    try:
        yield
    except (SpoolBusyError, SpoolForeignError) as error:
        raise RefusedError(str(error)) from error
    except (SpoolMissingError, NoServerError) as error:
        raise InterruptedRunError(f"{error}; start the server, then run again") from error


class _Absent:
    """Why nobody can be asked yet."""

    def __init__(self, message: str, *, held: bool) -> None:
        self.message = message
        self.held = held

    @property
    def advice(self) -> str:
        """What to do when the time is over."""
        if self.held:
            return (
                "see in its log what its hsstore plugin does (it reads the weights' headers before it "
                "announces itself), and run again, with a longer --server-wait if it only takes long"
            )
        return "start the server, then run again"


def _look(spool: Path) -> ServerInfo | _Absent:
    try:
        view = SpoolView(spool)
        info = view.server()
    except SpoolMissingError as error:
        return _Absent(str(error), held=False)
    if info is not None:
        return info
    held = view.server_alive()
    state = "is still loading" if held else "is not running"
    return _Absent(f"the server of spool {spool} {state}", held=held)


def _unannounced(url: str, spool: Path, found: _Absent, seconds: float) -> str:
    return (
        f"{url} has answered for {seconds:.0f} s, but its hsstore plugin has not announced itself "
        f"in {spool} ({found.message}). Check that hsstore is installed in the Python that runs "
        "the server (`python -m hsstore_sglang` there says so), that HSSTORE_SPOOL was set to this "
        "directory when it was started (else give the one it uses with --spool), that nobody has "
        "removed it since (else restart the server), that a server in a container shares /dev/shm "
        "with this process, and what its log says of hsstore"
    )

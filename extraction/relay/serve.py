"""Run a relay until it is told to stop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

from extraction.relay.held_spool import HeldSpool
from extraction.relay.server import Relay
from extraction.relay.token import TOKEN_VARIABLE
from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SHUTDOWN_SECONDS = 2.0
"""For what is being sent when the relay is told to stop: the client goes on where it was cut."""


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """What a user asked `hsstore relay` to do."""

    spool: Path
    host: str = "127.0.0.1"
    port: int = 31000
    token: str = field(default="", repr=False)
    max_connections: int = 64
    lease_seconds: float = 180.0


def serve_relay(options: RelayOptions) -> None:
    """Relay until SIGTERM or Ctrl-C; prints `ready http://HOST:PORT spool DIR` when it answers.

    Raises
    ------
    InputError
        No token, and others could reach it; or the address cannot be listened on.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    asyncio.run(_serve(options))


@asynccontextmanager
async def relaying(options: RelayOptions) -> AsyncIterator[str]:
    """Have a relay for a while; gives its URL.

    Raises
    ------
    InputError
    """
    _refuse_open_door(options)
    spool = HeldSpool(options.spool, options.lease_seconds)
    application = Relay(spool, options.token, options.max_connections).application()
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, options.host, options.port)
        try:
            await site.start()
        except OSError as error:
            raise InputError(
                f"cannot listen on {options.host} port {options.port}: {error}"
            ) from None
        host = f"[{options.host}]" if ":" in options.host else options.host
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _serve(options: RelayOptions) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with relaying(options) as url:
        sys.stdout.write(f"ready {url} spool {options.spool}\n")
        sys.stdout.flush()
        await stop.wait()


def _refuse_open_door(options: RelayOptions) -> None:
    if not options.token and not _is_loopback(options.host):
        raise InputError(
            f"--host {options.host}: others can reach that, so the relay needs a token: put one into "
            f"{TOKEN_VARIABLE}, or a file for --token-file (such as from `openssl rand -hex 32`)"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

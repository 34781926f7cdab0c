"""The first server of a run that is there: before it, nothing is known of the model."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from extraction.lane import link_to
from extraction.server_wait import relay_warnings, wait_for_server
from hsstore.errors import HsstoreError, InputError, InterruptedRunError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from extraction.access import Access
    from extraction.addresses import ServerAddress, Servers
    from extraction.options import ExtractOptions
    from extraction.spool import ServerInfo

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks at the servers file."""


async def first_contact(
    servers: Servers,
    options: ExtractOptions,
    access: Access,
    refused: dict[ServerAddress, RefusedError],
    check: Callable[[ServerInfo], None],
) -> tuple[ServerAddress, ServerInfo]:
    """Wait until a server that may be used has announced itself.

    Parameters
    ----------
    refused : dict
        Servers that are not to be asked; those that are found out here are added.
    check : callable
        Raises `RefusedError` for a server of another model.

    Raises
    ------
    InputError
        There is no server to wait for.
    RefusedError, InterruptedRunError
        Of the last one that might have been used.
    """
    waits: dict[ServerAddress, asyncio.Task[ServerInfo]] = {}
    try:
        while True:
            addresses = [
                each for each in await asyncio.to_thread(servers.read) if each not in refused
            ]
            for address in addresses:
                if address not in waits:
                    one = _wait(address, options, access, check, healthy=len(addresses) > 1)
                    waits[address] = asyncio.create_task(one)
            if not addresses:
                raise _last(list(refused.values()), "no server is named")
            await asyncio.wait(
                [waits[each] for each in addresses if not waits[each].done()],
                timeout=LOOK_SECONDS if servers.file else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            found = _look(waits, addresses, refused)
            if found is not None:
                return found
    finally:
        for wait in waits.values():
            wait.cancel()
        await asyncio.gather(*waits.values(), return_exceptions=True)


async def _wait(
    address: ServerAddress,
    options: ExtractOptions,
    access: Access,
    check: Callable[[ServerInfo], None],
    *,
    healthy: bool,
) -> ServerInfo:
    """Wait for one server; where there are others, until it is healthy too."""
    seconds = options.server_wait_seconds
    log.info("server %s, spool %s: waiting up to %.0f s", address.url, address.spool, seconds)
    async with link_to(address, options, access) as link:
        info = await wait_for_server(link, address.spool, seconds)
        if healthy:
            async with link.patience(seconds):
                await link.wait_until_healthy()
    if options.dry_run:  # else they are said when its lane is opened
        relay_warnings(info)
    check(info)
    return info


def _look(
    waits: dict[ServerAddress, asyncio.Task[ServerInfo]],
    addresses: list[ServerAddress],
    refused: dict[ServerAddress, RefusedError],
) -> tuple[ServerAddress, ServerInfo] | None:
    """Return what has come; take note of who is not to be asked.

    Raises
    ------
    HsstoreError
        Nobody is left.
    """
    late: list[HsstoreError] = []
    for address in addresses:
        if not waits[address].done():
            continue
        try:
            return address, waits[address].result()
        except RefusedError as error:
            refused[address] = error
            if len(addresses) > 1:
                log.warning("server %s is not used: %s", address.url, error)
        except InterruptedRunError as error:
            late.append(error)
    left = [one for one in addresses if one not in refused]
    if len(late) == len(left):
        raise _last([*refused.values(), *late], "")
    return None


def _last(errors: list[HsstoreError], otherwise: str) -> HsstoreError:
    return errors[-1] if errors else InputError(otherwise)

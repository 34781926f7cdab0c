"""The first server of a run that is there: before it, nothing is known of the model."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeAlias

from extraction.addresses import LOOK_SECONDS
from extraction.lane import link_to
from extraction.server_wait import relay_warnings, wait_for_server
from hsstore.errors import InputError, InterruptedRunError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from extraction.access import Access
    from extraction.addresses import ServerAddress, Servers
    from extraction.options import ExtractOptions
    from extraction.spool import ServerInfo

log = logging.getLogger(__name__)

Failures: TypeAlias = "dict[ServerAddress, RefusedError | InterruptedRunError]"
"""Why servers are not to be waited for, the last one last."""


async def first_contact(
    servers: Servers,
    options: ExtractOptions,
    access: Access,
    failed: Failures,
    check: Callable[[ServerInfo], None],
) -> tuple[ServerAddress, ServerInfo]:
    """Wait until a server that may be used has announced itself.

    Parameters
    ----------
    failed : dict
        Servers that are not to be waited for; those that are found out here are added, and those that
        are named no more are taken out.
    check : callable
        Raises `RefusedError` for a server of another model.

    Raises
    ------
    InputError
        There is no server to wait for.
    RefusedError, InterruptedRunError
        Of the last one that might have been used.
    """
    if not await asyncio.to_thread(servers.read):
        raise InputError(f"{servers.file} names no server")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.server_wait_seconds
    waits = _Waits(options, access, failed, check)
    try:
        while True:
            waits.follow(await asyncio.to_thread(servers.read))
            if (found := waits.look()) is not None:
                return found
            if failed and not waits.running:
                raise next(reversed(failed.values()))
            if not waits.running and loop.time() >= deadline:
                raise InterruptedRunError(f"{servers.file} names no server any more")
            await waits.pause(LOOK_SECONDS if servers.file else None)
    finally:
        await waits.end()


class _Waits:
    """Servers that are waited for side by side."""

    def __init__(
        self,
        options: ExtractOptions,
        access: Access,
        failed: Failures,
        check: Callable[[ServerInfo], None],
    ) -> None:
        self.running: dict[ServerAddress, asyncio.Task[ServerInfo]] = {}
        self._options = options
        self._access = access
        self._failed = failed
        self._check = check
        self._tasks: list[asyncio.Task[ServerInfo]] = []
        self._alone = False

    def follow(self, addresses: tuple[ServerAddress, ...]) -> None:
        """Begin to wait for those that are new, and forget those that are named no more."""
        self._alone = len(addresses) == 1
        for gone in self._failed.keys() - {*addresses}:  # named again, it gets another chance
            del self._failed[gone]
        for gone in self.running.keys() - {*addresses}:
            self.running.pop(gone).cancel()
        for address in addresses:
            if address not in self.running and address not in self._failed:
                self.running[address] = asyncio.create_task(self._wait(address))
                self._tasks.append(self.running[address])

    def look(self) -> tuple[ServerAddress, ServerInfo] | None:
        """Return what has come; take note of who is not to be waited for."""
        for address in [one for one, task in self.running.items() if task.done()]:
            try:
                return address, self.running.pop(address).result()
            except (RefusedError, InterruptedRunError) as error:
                self._failed[address] = error
                if not self._alone:
                    log.warning("server %s is not used: %s", address.url, error)
        return None

    async def pause(self, seconds: float | None) -> None:
        """Wait until something has come, or for so long."""
        if self.running:
            await asyncio.wait(
                self.running.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        else:  # the file was emptied: somebody may be about to write it
            await asyncio.sleep(seconds or 0.0)

    async def end(self) -> None:
        """Wait for nobody any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, address: ServerAddress) -> ServerInfo:
        """Wait for one server; where there are others, until it is healthy too."""
        seconds, healthy = self._options.server_wait_seconds, not self._alone
        log.info("server %s, spool %s: waiting up to %.0f s", address.url, address.spool, seconds)
        async with link_to(address, self._options, self._access) as link:
            info = await wait_for_server(link, address.spool, seconds)
            if healthy:
                async with link.patience(seconds):
                    await link.wait_until_healthy()
        if self._options.dry_run:  # else they are said when its lane is opened
            relay_warnings(info)
        self._check(info)
        return info

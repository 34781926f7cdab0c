"""When is SGLang ready: the plugin has announced itself, and the server answers.

The log is shown to people and never read for a decision. There is no time limit: a large model on a
slow disk takes an hour. What ends the wait is a process that died, a plugin that did not load, or a
server that neither writes nor computes any more.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import aiohttp

from extraction.engines.sglang.log import plugin_lines, quote, tail
from extraction.engines.sglang.process import cpu_seconds, has_open
from extraction.spool import ServerInfo
from extraction.spool.directory import SERVER_JSON, SERVER_LOCK
from extraction.spool.lock import is_held
from hsstore.errors import HsstoreError

if TYPE_CHECKING:
    from pathlib import Path

    from extraction.engines.sglang.process import ServerProcess

SHOW_SECONDS: Final = 15.0
PLUGIN_SECONDS: Final = 30.0
"""From the first answer of the server to a sign of the plugin: it takes the spool at once, and
announces itself when it has read the weights' headers, which on a slow disk may take long."""
STALL_SECONDS: Final = 900.0
PREPARING: Final = (
    "SGLang answers; hsstore's plugin still reads the weights' headers, for the capture hash"
)
_POLL_SECONDS: Final = 1.0
_HEALTH_SECONDS: Final = 25.0
"""SGLang itself gives up after 20."""


class Startup:
    """One wait for one server."""

    def __init__(
        self,
        server: ServerProcess,
        url: str,
        spool: Path,
        log: Path,
        *,
        plugin_seconds: float = PLUGIN_SECONDS,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._server = server
        self._plugin_seconds = plugin_seconds
        self._stall_seconds = stall_seconds
        self._url = url
        self._spool = spool
        self._log = log
        self._started = self._shown = self._moved = time.monotonic()
        self._progress: tuple[int, float] = (0, 0.0)
        self._silent_since: float | None = None

    async def wait(self) -> ServerInfo:
        """Return what the plugin announced, once requests can come.

        Raises
        ------
        HsstoreError
            The server died, did not load the plugin, or hangs. The message ends with its log.
        """
        async with aiohttp.ClientSession() as http:
            while True:
                healthy = await self._healthy(http)
                info = self._announced()
                if healthy and info is not None:
                    self._server.members()  # it remembers what is theirs, should they die now
                    return info
                preparing = healthy and await asyncio.to_thread(self._plugin_prepares)
                self._raise_if_hopeless(silent=healthy and not preparing)
                self._show(preparing=preparing)
                await asyncio.sleep(_POLL_SECONDS)

    async def _healthy(self, http: aiohttp.ClientSession) -> bool:
        timeout = aiohttp.ClientTimeout(total=_HEALTH_SECONDS)
        try:
            # Whose certificate it is does not matter here: nothing is sent.
            async with http.get(f"{self._url}/health", timeout=timeout, ssl=False) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _announced(self) -> ServerInfo | None:
        """Read server.json, if a live process of this very server wrote it."""
        try:
            if not is_held(self._spool / SERVER_LOCK):
                return None
            info = ServerInfo.from_json((self._spool / SERVER_JSON).read_bytes())
            ours = os.getsid(info.pid) == self._server.session
        except (OSError, ValueError):
            return None
        return info if ours else None

    def _plugin_prepares(self) -> bool:
        """Whether a process of this very server holds the spool, announced or not."""
        lock = self._spool / SERVER_LOCK
        return has_open(self._server.members(), lock) and is_held(lock)

    def _raise_if_hopeless(self, *, silent: bool) -> None:
        members = self._server.members()
        if self._server.returncode is not None:
            raise HsstoreError(died(self._server.returncode, self._log, when="before it was ready"))
        if not silent:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = time.monotonic()
        elif time.monotonic() - self._silent_since > self._plugin_seconds:
            raise HsstoreError(self._no_plugin())
        if not self._moves(members):
            raise HsstoreError(
                f"SGLang has neither written to its log nor computed for {self._stall_seconds:.0f} s and "
                f"is not ready; it was stopped{quote(self._log, tail(self._log))}"
            )

    def _moves(self, members: set[int]) -> bool:
        written, computed = self._log.stat().st_size, cpu_seconds(members)
        # Polling alone takes some time too: only more than a second of it counts.
        if written != self._progress[0] or abs(computed - self._progress[1]) > 1:
            self._progress = written, computed
            self._moved = time.monotonic()
        return time.monotonic() - self._moved < self._stall_seconds

    def _no_plugin(self) -> str:
        lines = plugin_lines(self._log)
        said = "its last words:" if lines else "it said nothing: SGLang has not loaded it at all."
        return (
            f"SGLang answers, but the hsstore plugin has not announced itself in {self._spool}: no "
            f"hidden state would arrive. The server was stopped. Of the plugin, {said}"
            f"{quote(self._log, lines)}"
        )

    def _show(self, *, preparing: bool) -> None:
        now = time.monotonic()
        if now - self._shown < SHOW_SECONDS:
            return
        self._shown = now
        last = PREPARING if preparing else "".join(tail(self._log, 1))[:200]
        with suppress(OSError):
            sys.stderr.write(f"hsstore: starting for {now - self._started:.0f} s: {last}\n")
            sys.stderr.flush()


def died(returncode: int, log: Path, *, when: str) -> str:
    """Say how SGLang ended, with the end of its log."""
    how = f"was killed by signal {-returncode}" if returncode < 0 else f"ended with {returncode}"
    return f"SGLang {how} {when}; the end of its log:{quote(log, tail(log))}"

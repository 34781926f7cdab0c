"""One server as the client sees it: its HTTP API, and whether it is there.

The API is SGLang's: `/generate`, `/abort_request`, `/health`. No retry is hidden in here: what a
failure means for a sample is said by the type of the error, and decided by the pipeline.
"""

from __future__ import annotations

import asyncio
import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

import aiohttp

from hsstore.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

CONNECT_SECONDS = 10.0
PROBE_SECONDS = 0.5
MAX_PROBE_SECONDS = 5.0


class ServerAwayError(Exception):
    """The server refused, reset, or answered with a 5xx: not the sample's fault."""


class RequestRefusedError(Exception):
    """The server refused this very request (4xx)."""


class ServerLink:
    """HTTP to one server; a context manager around its connections."""

    def __init__(self, url: str, max_connections: int) -> None:
        self.url = url.rstrip("/")
        self.up = asyncio.Event()
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        key = os.environ.get("HSSTORE_API_KEY")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_connections + 8),
            # A prefill may take minutes: progress is judged by the server's heartbeat instead.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open_session.close()

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the link is used outside its context")
        return self._session

    async def generate(self, rid: str, input_ids: Sequence[int]) -> None:
        """Have the server prefill `input_ids`; the states come through the spool.

        Raises
        ------
        ServerAwayError
        RequestRefusedError
        RefusedError
            It wants another API key: no request will ever pass.
        """
        body = {
            "rid": rid,
            "input_ids": input_ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "extra_key": rid,  # keeps other requests' prefix cache out of this one
        }
        try:
            async with self._open_session.post(f"{self.url}/generate", json=body) as response:
                if response.status != HTTPStatus.OK:
                    _raise_for(response.status, (await response.text())[:500])
                await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServerAwayError(f"{self.url}: {str(error) or type(error).__name__}") from error

    async def abort(self, rid: str, timeout_seconds: float) -> None:
        """Tell the server that nobody waits for this request any more; best effort."""
        try:
            async with asyncio.timeout(timeout_seconds):
                post = self._open_session.post(f"{self.url}/abort_request", json={"rid": rid})
                async with post as response:
                    await response.read()
        except (aiohttp.ClientError, TimeoutError):
            return  # it is gone, or it will find out by itself

    async def healthy(self) -> bool:
        """Ask for `/health` once."""
        timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
        try:
            async with self._open_session.get(f"{self.url}/health", timeout=timeout) as response:
                return response.status == HTTPStatus.OK
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def wait_until_healthy(self) -> None:
        """Probe with growing pauses until the server answers."""
        pause = PROBE_SECONDS
        while not await self.healthy():
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PROBE_SECONDS)


def _raise_for(status: int, text: str) -> None:
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise RefusedError(
            f"the server answered {status}: set HSSTORE_API_KEY to the key it was started with"
        )
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ServerAwayError(f"the server answered {status}: {text}")
    raise RequestRefusedError(f"the server answered {status}: {text}")

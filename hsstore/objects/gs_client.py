"""Requests to Google Cloud Storage, with the credentials that google-auth finds."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import google.auth
import google.auth.credentials
from fsspec.asyn import get_loop
from google.auth.transport.requests import Request as TokenRequest
from yarl import URL

from hsstore.objects import pace

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

GOOGLE = "https://storage.googleapis.com"
ENDPOINT = "STORAGE_EMULATOR_HOST"
"""The variable in which Google's own libraries look for another server; with them it needs no credentials."""
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def header(self, name: str) -> str:
        """Return a header that must be there."""
        try:
            return self.headers[name]
        except KeyError:
            raise aiohttp.ClientPayloadError(f"an answer without {name}") from None

    def field(self, name: str) -> str:
        """Return a field of the JSON object that must be there."""
        try:
            return str(json.loads(self.body)[name])
        except (ValueError, TypeError, KeyError):
            raise aiohttp.ClientPayloadError(f"an answer without {name}") from None


class GoogleError(Exception):
    """What Google refuses, or cannot do now.

    Attributes
    ----------
    code : str
        As the XML API names it, or the reason that the JSON API gives.
    """

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.code, self.said = _problem(reply.body)
        super().__init__(f"{self.code} ({self.status}): {self.said}")


class GoogleClient:
    """One pool of connections, and the credentials, which are renewed before they expire."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = get_loop()
        named = os.environ.get(ENDPOINT, "").rstrip("/")
        self.endpoint = (named if "://" in named else f"http://{named}") if named else GOOGLE
        self._session: aiohttp.ClientSession | None = None
        self._credentials: google.auth.credentials.Credentials | None = None
        self._renewing: asyncio.Future[None] | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        expected: Container[int] = (),
    ) -> Reply:
        """Send a request, and read the whole answer, in one attempt.

        Parameters
        ----------
        url : str
            Quoted, and without the endpoint; one that has it is that of a session, which needs no credentials.
        expected : container of int
            Statuses that are no error, besides those of success.

        Raises
        ------
        GoogleError
            Any other status.
        aiohttp.ClientError, OSError, google.auth.exceptions.GoogleAuthError
        """
        sent = dict(headers or {})
        if "://" not in url:
            url = f"{self.endpoint}{url}"
            sent |= await self._authorization()
        async with (
            pace.sending(body) if body else nullcontext()
        ):  # others may wait for a connection
            response = await self._connected().request(
                method,
                URL(url, encoded=True),
                headers=sent,
                data=io.BytesIO(body) if body else None,
                allow_redirects=False,  # 308 says how much of an upload is there
                proxy=_proxy_of(url),
            )
        async with response, pace.receiving(response.content_length or 0):
            data = await response.read()
        reply = Reply(response.status, response.headers, data)
        if response.status // 100 == 2 or response.status in expected:
            return reply
        raise GoogleError(reply)

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=pace.CONNECTIONS),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=pace.CONNECT_SECONDS, sock_read=pace.READ_SECONDS
                ),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
            )
            weakref.finalize(self, _close, os.getpid(), self.loop, self._session)
        return self._session

    async def _authorization(self) -> dict[str, str]:
        if self._credentials is None or not self._credentials.valid:
            if self._renewing is None or self._renewing.done():
                self._renewing = asyncio.ensure_future(asyncio.to_thread(self._renew))
            # All fail with it, or each would wait for one of its own.
            await asyncio.shield(self._renewing)
        token = self._credentials.token if self._credentials else None
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _renew(self) -> None:
        if self._credentials is None:
            self._credentials = _find_credentials()
        if not self._credentials.valid:
            self._credentials.refresh(partial(TokenRequest(), timeout=pace.READ_SECONDS))


def _find_credentials() -> google.auth.credentials.Credentials:
    """Look where Google's own tools do; without a request where another server is named, and no credentials are."""
    if ENDPOINT in os.environ and "GOOGLE_APPLICATION_CREDENTIALS" not in os.environ:
        return google.auth.credentials.AnonymousCredentials()
    logging.getLogger("google.auth._default").setLevel(logging.ERROR)  # no project is needed
    found: google.auth.credentials.Credentials = google.auth.default(scopes=[SCOPE])[0]
    return found


def _proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names; aiohttp would look for passwords in ~/.netrc as well."""
    where = urlsplit(url)
    return None if proxy_bypass(where.hostname or "") else getproxies().get(where.scheme)


def _close(process: int, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
    """Close a session that nobody needs; one that came with a fork is another process's."""
    if process == os.getpid() and loop.is_running():
        asyncio.run_coroutine_threadsafe(session.close(), loop)


def _problem(body: bytes) -> tuple[str, str]:
    """Return code and message of an error, in any of the forms that Google has."""
    text = body.decode(errors="replace")
    try:
        error: Any = json.loads(text)["error"]
        return str(error["errors"][0]["reason"]), str(error["message"])
    except (ValueError, TypeError, KeyError, IndexError):
        pass
    code, message = (re.search(rf"<{name}>([^<]*)</{name}>", text) for name in ("Code", "Message"))
    return (code[1] if code else "error"), (message[1] if message else text[:200])

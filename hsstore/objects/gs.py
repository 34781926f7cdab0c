"""Google Cloud Storage, read: one GET a range, of one generation.

Objects are read through its XML API, whose errors have codes: the JSON API tells a missing object from a missing bucket
by a sentence only. What is listed and written goes through the JSON API.
"""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import aiohttp
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from typing_extensions import override

from hsstore.objects.answer import Answer, Backend, Request, missing, split, stale
from hsstore.objects.gs_client import GoogleClient, GoogleError, Reply

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

GENERATION = "x-goog-generation"
IF_GENERATION = "x-goog-if-generation-match"
_AGAIN = frozenset({408, 409, 429})
"""Statuses that mean once more, besides those of the server's own errors."""


class GoogleBackend(Backend):
    """Reads through one client."""

    def __init__(self) -> None:
        self._client = GoogleClient()

    @property
    def loop(self) -> AbstractEventLoop:
        """The event loop that the client belongs to."""
        return self._client.loop

    @override
    async def fetch(self, request: Request) -> Answer:
        condition = {} if request.version is None else {IF_GENERATION: request.version}
        try:
            reply = await self._get(request.url, condition | request.range)
        except GoogleError as error:
            if error.code == "NoSuchKey":
                raise missing(request.url) from None
            if error.status == 412 or (error.status == 416 and request.version is not None):
                raise stale(request.url) from None
            if error.status == 416:  # the object ends before
                return Answer(b"", 0, "")
            raise
        if request.version not in {None, reply.header(GENERATION)}:  # whoever ignores conditions
            raise stale(request.url)
        return Answer(reply.body, size_of(reply), reply.header(GENERATION), modified(reply))

    async def _get(self, url: str, headers: dict[str, str], method: str = "GET") -> Reply:
        bucket, key = split(url)
        return await self._client.request(method, f"/{bucket}/{quote(key)}", headers=headers)

    @override
    async def find(self, url: str, after: str) -> tuple[dict[str, int], str]:
        bucket, key = split(url)
        prefix = f"{key}/" if key else ""
        query = {"prefix": prefix, "fields": "nextPageToken,items(name,size)"}
        query |= {"pageToken": after} if after else {}
        reply = await self._client.request("GET", f"/storage/v1/b/{bucket}/o?{urlencode(query)}")
        try:
            page = json.loads(reply.body)
        except ValueError:
            raise aiohttp.ClientPayloadError("a listing that is no JSON") from None
        found = {
            one["name"].removeprefix(prefix): int(one.get("size", 0))
            for one in page.get("items", ())
            if not one["name"].endswith("/")  # what some tools put for a folder
        }
        return found, page.get("nextPageToken", "")

    @override
    def refusal(self, error: Exception) -> str | None:
        if isinstance(error, GoogleError):
            if error.status >= 500 or error.status in _AGAIN or is_other_bytes(error):
                return None
            return f"{error}{_ADVICE.get(error.status, '')}"
        if isinstance(error, (aiohttp.ClientError, OSError, TransportError)):
            return None
        if isinstance(error, DefaultCredentialsError):
            return f"there are no credentials: {error}"
        if isinstance(error, GoogleAuthError) and error.retryable:
            return None
        return f"{type(error).__name__}: {error}"


_ADVICE = {
    401: "; see the credentials",
    403: "; see the credentials, and that they allow storage.objects.get and storage.objects.list; to write, "
    "storage.objects.create and storage.objects.delete too, without which nothing can be replaced",
    404: "; see the bucket's name",
}


def is_other_bytes(error: GoogleError) -> bool:
    """Say whether what came was not what was sent: it has no code of its own."""
    return error.status in {400, 412} and "crc32c" in error.said.lower()


def size_of(reply: Reply) -> int:
    """Return the size of the whole object, in bytes, of an answer that may be a range of it."""
    return int(reply.headers.get("Content-Range", f"/{len(reply.body)}").rpartition("/")[2])


def modified(reply: Reply) -> float:
    """Return when the object was put: seconds since 1970."""
    return parsedate_to_datetime(reply.header("Last-Modified")).timestamp()

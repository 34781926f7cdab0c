"""S3 and what speaks like it: one GET a range, of one version, with what it says of the object.

s3fs knows how to connect, and where credentials may lie; requests go to its client directly, for the answer's
headers, for `If-Match`, and to tell a missing object from a missing bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError as BotoConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ResponseStreamingError,
)
from botocore.parsers import ResponseParserError
from s3fs.core import S3FileSystem
from typing_extensions import override

from hsstore.objects.answer import Answer, Backend, Request, missing, stale

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

CONNECT_SECONDS = 10
READ_SECONDS = 60
"""Without a byte for so long, an attempt is given up."""
CONNECTIONS = 64

_BROKEN = (
    BotoConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ResponseParserError,  # slow-downs may come as invalid XML
    ResponseStreamingError,
    aiohttp.ClientError,
    OSError,  # timeouts and resets among them
)
_SLOWER = frozenset({"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException"})
"""Codes that mean later, whatever their HTTP status."""


class S3Backend(Backend):
    """Reads through one client, with its pool of connections."""

    def __init__(self) -> None:
        self._fs = S3FileSystem(
            use_listings_cache=False,
            skip_instance_cache=True,
            config_kwargs={
                "connect_timeout": CONNECT_SECONDS,
                "read_timeout": READ_SECONDS,
                "max_pool_connections": CONNECTIONS,
                # Some servers send the whole object's checksum with a range. Ours has a crc32c a chunk.
                "response_checksum_validation": "when_required",
                "retries": {"total_max_attempts": 1, "mode": "standard"},  # see `retry`
            },
        )
        self._fs.retries = 1

    @property
    def loop(self) -> AbstractEventLoop:
        """The event loop that the client belongs to."""
        loop: AbstractEventLoop = self._fs.loop
        return loop

    @override
    async def fetch(self, request: Request) -> Answer:
        bucket, _, key = request.url.removeprefix("s3://").partition("/")
        await self._fs.set_session()
        client = await self._fs.get_s3(bucket)
        try:
            response = await client.get_object(Bucket=bucket, Key=key, **_headers(request))
        except ClientError as error:
            if _code(error) == "NoSuchKey":
                raise missing(request.url) from None
            if _code(error) == "PreconditionFailed" or _status(error) == 412:
                raise stale(request.url) from None
            if _code(error) == "InvalidRange":  # the object ends before
                return Answer(b"", 0, "")
            raise
        async with response["Body"] as body:
            data: bytes = await body.read()
        if len(data) != response["ContentLength"]:
            raise aiohttp.ClientPayloadError(
                f"{len(data)} bytes came of {response['ContentLength']}"
            )
        size = int(str(response.get("ContentRange", f"/{len(data)}")).rpartition("/")[2])
        return Answer(data, size, response["ETag"], response["LastModified"].timestamp())

    @override
    async def find(self, url: str) -> dict[str, int]:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        prefix = f"{key}/" if key else ""
        await self._fs.set_session()
        client = await self._fs.get_s3(bucket)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {
            found["Key"].removeprefix(prefix): found["Size"]
            async for page in pages
            for found in page.get("Contents", ())
        }

    @override
    def refusal(self, error: Exception) -> str | None:
        if isinstance(error, ClientError):
            status, code = _status(error), _code(error)
            if status >= 500 or status in {408, 429} or code in _SLOWER:
                return None
            said = error.response.get("Error", {}).get("Message", "")
            return f"{code} ({status}): {said}{_ADVICE.get(status, '')}"
        if isinstance(error, _BROKEN):
            return None
        if isinstance(error, NoCredentialsError):
            return "there are no credentials in the environment, and no profile that has them"
        if isinstance(error, BotoCoreError):  # the configuration: no such profile, no region
            return str(error)
        raise error


_ADVICE = {
    403: "; see the credentials in the environment or the profile, and that they allow s3:GetObject and "
    "s3:ListBucket: without the latter S3 does not say whether an object is missing or forbidden",
    404: "; see the bucket's name, and AWS_ENDPOINT_URL",
    301: "; see AWS_DEFAULT_REGION",
    400: "; see AWS_DEFAULT_REGION, and whether the credentials have expired",
}


def _headers(request: Request) -> dict[str, str]:
    headers = {} if request.version is None else {"IfMatch": request.version}
    if request.is_whole:
        return headers
    if request.start < 0:
        return headers | {"Range": f"bytes={request.start}"}
    last = "" if request.stop is None else request.stop - 1
    return headers | {"Range": f"bytes={request.start}-{last}"}


def _code(error: Any) -> str:  # noqa: ANN401  # a ClientError, which has no types
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: Any) -> int:  # noqa: ANN401
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))

"""S3 and what speaks like it: one GET a range, of one version, with what it says of the object.

s3fs knows how to connect, and where credentials may lie; requests go to its client directly, for the answer's
headers, for `If-Match`, and to tell a missing object from a missing bucket.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError as BotoConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ResponseStreamingError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError
from s3fs.core import S3FileSystem
from typing_extensions import override

from hsstore.objects import pace
from hsstore.objects.answer import Answer, Backend, Request, missing, split, stale

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_BROKEN = (
    BotoConnectionError,
    CredentialRetrievalError,  # those that were there may have to be renewed in mid run
    HTTPClientError,
    IncompleteReadError,
    ResponseParserError,  # slow-downs may come as invalid XML
    ResponseStreamingError,
    TokenRetrievalError,
    aiohttp.ClientError,
    OSError,  # timeouts and resets among them
)
_AGAIN = frozenset(
    {
        "SlowDown",
        "RequestTimeout",
        "Throttling",
        "ThrottlingException",
        "ConditionalRequestConflict",  # another put of the object was under way
        "OperationAborted",
        "BadDigest",  # what came was not what was sent
        "IncompleteBody",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
    }
)
"""Codes that mean once more, whatever their HTTP status."""


class S3Backend(Backend):
    """Reads through one client, with its pool of connections."""

    def __init__(self) -> None:
        self._fs = S3FileSystem(
            anon=os.environ.get("AWS_NO_SIGN_REQUEST", "").lower() in {"1", "yes", "true"},
            use_listings_cache=False,
            skip_instance_cache=True,
            config_kwargs={
                "connect_timeout": pace.CONNECT_SECONDS,
                "read_timeout": pace.READ_SECONDS,
                "max_pool_connections": pace.CONNECTIONS,
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
        bucket, key = split(request.url)
        client = await self._client(bucket)
        condition = {} if request.version is None else {"IfMatch": request.version}
        try:
            response = await client.get_object(Bucket=bucket, Key=key, **condition, **request.range)
        except ClientError as error:
            if error_code(error) == "NoSuchKey":
                raise missing(request.url) from None
            if error_code(error) == "PreconditionFailed" or error_status(error) == 412:
                raise stale(request.url) from None
            if error_code(error) == "InvalidRange":  # the object ends before
                if request.version is not None:  # nobody asks behind the end of what he knows
                    raise stale(request.url) from None
                return Answer(b"", 0, "")
            raise
        async with response["Body"] as body:
            if request.version not in {None, response["ETag"]}:  # some servers ignore `If-Match`
                raise stale(request.url)
            async with pace.receiving(response["ContentLength"]):
                data: bytes = await body.read()
        if len(data) != response["ContentLength"]:
            raise aiohttp.ClientPayloadError(
                f"{len(data)} bytes came of {response['ContentLength']}"
            )
        size = int(str(response.get("ContentRange", f"/{len(data)}")).rpartition("/")[2])
        return Answer(data, size, response["ETag"], response["LastModified"].timestamp())

    @override
    async def find(self, url: str, after: str) -> tuple[dict[str, int], str]:
        bucket, key = split(url)
        prefix = f"{key}/" if key else ""
        client = await self._client(bucket)
        where = {"ContinuationToken": after} if after else {}
        page = await client.list_objects_v2(Bucket=bucket, Prefix=prefix, **where)
        found = {
            found["Key"].removeprefix(prefix): found["Size"]
            for found in page.get("Contents", ())
            if not found["Key"].endswith("/")  # what some tools put for a folder
        }
        return found, page.get("NextContinuationToken", "")

    async def _client(self, bucket: str) -> Any:  # noqa: ANN401  # aiobotocore has no types
        await self._fs.set_session()
        return await self._fs.get_s3(bucket)

    @override
    def refusal(self, error: Exception) -> str | None:
        if isinstance(error, ClientError):
            status, code = error_status(error), error_code(error)
            if status >= 500 or status in {408, 429} or code in _AGAIN:
                return None
            said = error.response.get("Error", {}).get("Message", "")
            return f"{code} ({status}): {said}{_ADVICE.get(status, '')}"
        if isinstance(error, _BROKEN):
            return None
        if isinstance(error, NoCredentialsError):
            return "there are no credentials in the environment, and no profile that has them"
        if isinstance(error, BotoCoreError):  # the configuration: no such profile, no region
            return str(error)
        return f"{type(error).__name__}: {error}"


_ADVICE = {
    403: "; see the credentials in the environment or the profile, and that they allow s3:GetObject and "
    "s3:ListBucket: without the latter S3 does not say whether an object is missing or forbidden; to write, "
    "s3:PutObject too",
    404: "; see the bucket's name, and AWS_ENDPOINT_URL",
    301: "; see AWS_DEFAULT_REGION",
    400: "; see AWS_DEFAULT_REGION, and whether the credentials have expired",
}


def error_code(error: Any) -> str:  # noqa: ANN401  # a ClientError, which has no types
    """Return what S3 calls an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def error_status(error: Any) -> int:  # noqa: ANN401
    """Return the HTTP status of an error."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))

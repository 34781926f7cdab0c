"""Google Cloud Storage, written to: on the condition of a generation, with a checksum that the server compares.

Its uploads that look like S3's take no condition. So what comes in parts is a resumable upload: its parts are sent one
after the other, each but the last a multiple of 256 KiB, its condition is given when it is begun and looked at when
it is completed, and so is the checksum of the whole object. Nobody can list such uploads; Google forgets them in a week.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, urlencode

import aiohttp
from typing_extensions import override

from hsstore.errors import UnreachableError
from hsstore.objects.answer import split
from hsstore.objects.checksum import crc32c
from hsstore.objects.gs import (
    GENERATION,
    GoogleBackend,
    is_other_bytes,
    modified,
    size_of,
)
from hsstore.objects.gs_client import GoogleError
from hsstore.objects.puts import (
    ABSENT,
    TOKEN,
    ConflictError,
    Part,
    Put,
    Stat,
    UploadId,
    WritableBackend,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT_BYTES = 256 << 10
"""What an upload has before its end is a multiple of this."""
_ANOTHER_STORES = "1"
"""In place of a version that is no generation: none that an object has, since they count microseconds since 1970."""
_GONE = frozenset({404, 410, 499})
"""Statuses of a session that has expired, or was ended."""


class GoogleStore(GoogleBackend, WritableBackend):
    """Writes through the client that reads."""

    in_order: ClassVar[bool] = True

    @override
    async def put(self, put: Put, checksum: str, token: str) -> str:
        resource = {"crc32c": checksum, **_metadata(token)}
        kind = {"Content-Type": f"multipart/related; boundary={token}"}
        with _conflicts(put.url):
            reply = await self._client.request(
                "POST",
                _upload_at(put.url, "multipart", put.replaces),
                headers=kind,
                body=_related(json.dumps(resource).encode(), put.data, token.encode()),
            )
        return reply.field("generation")

    @override
    async def head(self, url: str) -> Stat | None:
        """Get the first byte: the answer to HEAD has no body that would tell a missing bucket from a missing object."""
        try:
            found = await self._get(url, {"Range": "bytes=0-0"})
        except GoogleError as error:
            if error.code == "NoSuchKey":
                return None
            if error.status != 416:
                raise
            found = await self._get(url, {}, "HEAD")  # it is empty
        token = found.headers.get(f"x-goog-meta-{TOKEN}", "")
        return Stat(size_of(found), found.header(GENERATION), modified(found), token)

    @override
    async def begin(self, url: str, token: str, replaces: str) -> UploadId:
        with _conflicts(url):
            reply = await self._client.request(
                "POST",
                _upload_at(url, "resumable", replaces),
                headers={"Content-Type": "application/json"},
                body=json.dumps(_metadata(token)).encode(),
            )
        return UploadId(url, reply.header("Location"))

    @override
    async def send(
        self, upload: UploadId, number: int, data: bytes, checksum: str, before: Part | None
    ) -> Part:
        before = before or Part(0, "", "")
        so_far = crc32c(data, before.checksum)
        data = before.rest + data if before.rest else data
        whole_bytes = len(data) - len(data) % UNIT_BYTES
        stop = before.stop + whole_bytes
        if whole_bytes:
            await self._send(upload, before.stop, data[:whole_bytes])
        return Part(number, "", so_far, stop, data[whole_bytes:])

    async def _send(self, upload: UploadId, start: int, data: bytes) -> None:
        stop = start + len(data)
        with _conflicts(upload.url, is_session=True):
            reply = await self._client.request(
                "PUT",
                upload.id,
                headers={"Content-Range": f"bytes {start}-{stop - 1}/*"},
                body=data,
                expected={308},
            )
        kept = int(reply.headers.get("Range", "-").rpartition("-")[2] or -1) + 1
        if reply.status != 308 or kept != stop:  # sent again, it takes no byte twice
            raise aiohttp.ClientPayloadError(f"{kept} bytes were taken of {stop}")

    @override
    async def complete(self, upload: UploadId, parts: tuple[Part, ...], replaces: str) -> str:
        last = parts[-1]
        stop = last.stop + len(last.rest)
        place = f"{last.stop}-{stop - 1}" if last.rest else "*"
        with _conflicts(upload.url, is_session=True):
            reply = await self._client.request(
                "PUT",
                upload.id,
                headers={
                    "Content-Range": f"bytes {place}/{stop}",
                    "X-Goog-Hash": f"crc32c={last.checksum}",
                },
                body=last.rest,
                expected={308},  # it lacks bytes
            )
        return reply.field("generation")

    @override
    async def abort(self, upload: UploadId) -> None:
        try:
            await self._client.request("DELETE", upload.id)
        except GoogleError as error:  # 499 says that it was open, others that it is not
            if self.refusal(error) is None:
                raise

    @override
    async def uploads(self, url: str, after: str) -> tuple[list[UploadId], str]:
        return [], ""


def _upload_at(url: str, kind: str, replaces: str) -> str:
    bucket, key = split(url)
    generation = "0" if replaces == ABSENT else replaces
    query = {
        "uploadType": kind,
        "name": key,
        "ifGenerationMatch": generation if generation.isdigit() else _ANOTHER_STORES,
        "fields": "generation",
    }
    return f"/upload/storage/v1/b/{bucket}/o?{urlencode(query, quote_via=quote, safe='')}"


def _metadata(token: str) -> dict[str, object]:
    # What everybody may read is kept for an hour by Google's own caches, unless it says otherwise.
    return {"metadata": {TOKEN: token}, "cacheControl": "no-store"}


def _related(resource: bytes, data: bytes, boundary: bytes) -> bytes:
    """Return an object's metadata and its bytes as one body."""
    return b"".join(
        (
            *(b"--", boundary, b"\r\nContent-Type: application/json\r\n\r\n", resource),
            *(b"\r\n--", boundary, b"\r\nContent-Type: application/octet-stream\r\n\r\n", data),
            *(b"\r\n--", boundary, b"--\r\n"),
        )
    )


@contextmanager
def _conflicts(url: str, *, is_session: bool = False) -> Iterator[None]:
    try:
        yield
    except GoogleError as error:
        if is_other_bytes(error):
            if not is_session:
                raise
            raise UnreachableError(  # its parts are not here any more
                f"cannot write {url}: what arrived is not what was sent, so there is no such object ({error}). "
                "Run the same command again"
            ) from None
        if error.status == 412:
            raise ConflictError(url) from None
        if is_session and error.status in _GONE:
            raise ConflictError(url, upload_is_gone=True) from None
        raise

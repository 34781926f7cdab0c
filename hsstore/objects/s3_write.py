"""S3, written to: conditional, with a checksum that the server compares before it takes anything.

The checksum is a crc32c, computed here: botocore has one only with another package. The token of a put is in its
metadata, since answers get lost: an ETag does not tell whose an object is.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError
from typing_extensions import override

from hsstore.objects import pace
from hsstore.objects.answer import split
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
from hsstore.objects.s3 import S3Backend, error_code, error_status

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHERWISE = frozenset({"PreconditionFailed", "NoSuchKey", "NoSuchUpload"})
"""Codes of a condition that is not met: the object is another one, or gone, or the upload is."""


class S3Store(S3Backend, WritableBackend):
    """Writes through the client that reads."""

    @override
    async def put(self, put: Put, checksum: str, token: str) -> str:
        bucket, key = split(put.url)
        client = await self._client(bucket)
        with _conflicts(put.url):
            async with pace.sending(put.data):
                done = await client.put_object(
                    Bucket=bucket,
                    Key=key,
                    Body=put.data,
                    ChecksumCRC32C=checksum,
                    Metadata={TOKEN: token},
                    **_condition(put.replaces),
                )
        return str(done["ETag"])

    @override
    async def head(self, url: str) -> Stat | None:
        """Get the first byte: the answer to HEAD has no body that would tell a missing bucket from a missing object."""
        bucket, key = split(url)
        client = await self._client(bucket)
        try:
            found = await client.get_object(Bucket=bucket, Key=key, Range="bytes=0-0")
        except ClientError as error:
            if error_code(error) == "NoSuchKey":
                return None
            if error_code(error) != "InvalidRange":
                raise
            found = await client.head_object(Bucket=bucket, Key=key)  # it is empty
        else:
            found["Body"].close()
        size = int(str(found.get("ContentRange", "/0")).rpartition("/")[2])
        token = found["Metadata"].get(TOKEN, "")
        return Stat(size, str(found["ETag"]), found["LastModified"].timestamp(), token)

    @override
    async def begin(self, url: str, token: str, replaces: str) -> UploadId:
        bucket, key = split(url)
        client = await self._client(bucket)
        begun = await client.create_multipart_upload(
            Bucket=bucket, Key=key, ChecksumAlgorithm="CRC32C", Metadata={TOKEN: token}
        )
        return UploadId(url, begun["UploadId"])

    @override
    async def send(
        self, upload: UploadId, number: int, data: bytes, checksum: str, before: Part | None
    ) -> Part:
        bucket, key = split(upload.url)
        client = await self._client(bucket)
        with _conflicts(upload.url):
            async with pace.sending(data):
                done = await client.upload_part(
                    Bucket=bucket,
                    Key=key,
                    UploadId=upload.id,
                    PartNumber=number,
                    Body=data,
                    ChecksumCRC32C=checksum,
                )
        return Part(number, done["ETag"], checksum)

    @override
    async def complete(self, upload: UploadId, parts: tuple[Part, ...], replaces: str) -> str:
        bucket, key = split(upload.url)
        client = await self._client(bucket)
        listed = [
            {"PartNumber": part.number, "ETag": part.etag, "ChecksumCRC32C": part.checksum}
            for part in parts
        ]
        with _conflicts(upload.url):
            done = await client.complete_multipart_upload(
                Bucket=bucket,
                Key=key,
                UploadId=upload.id,
                MultipartUpload={"Parts": listed},
                **_condition(replaces),
            )
        return str(done["ETag"])

    @override
    async def abort(self, upload: UploadId) -> None:
        bucket, key = split(upload.url)
        client = await self._client(bucket)
        try:
            await client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload.id)
        except ClientError as error:
            if error_code(error) != "NoSuchUpload":
                raise

    @override
    async def uploads(self, url: str, after: str) -> tuple[list[UploadId], str]:
        bucket, prefix = split(url)
        client = await self._client(bucket)
        key, _, upload = after.rpartition(" ")
        where = {"KeyMarker": key, "UploadIdMarker": upload} if after else {}
        page = await client.list_multipart_uploads(Bucket=bucket, Prefix=prefix, **where)
        found = [
            UploadId(f"{url.removesuffix(prefix)}{one['Key']}", one["UploadId"])
            for one in page.get("Uploads", ())
        ]
        if not page.get("IsTruncated"):
            return found, ""
        return found, f"{page['NextKeyMarker']} {page['NextUploadIdMarker']}"


def _condition(replaces: str) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if replaces == ABSENT else {"IfMatch": replaces}


@contextmanager
def _conflicts(url: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error_code(error) in _OTHERWISE or error_status(error) == 412:
            is_gone = error_code(error) == "NoSuchUpload"
            raise ConflictError(url, upload_is_gone=is_gone) from None
        raise

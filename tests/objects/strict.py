"""What S3 does with a write and moto does not: conditions and writes are one step, checksums are compared.

moto 5.2: a condition is looked at before the write, with nothing to keep others out meanwhile; `If-Match` of a
CompleteMultipartUpload is ignored (`If-None-Match` is not); no checksum is compared with what came; a part for an
upload that is gone is an error of the server.
"""

from __future__ import annotations

import base64
import struct
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import google_crc32c
from moto.s3.models import s3_backends

from tests.objects.faulty import take_body

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ACCOUNT = "123456789012"


class Strict:
    """Answers as S3 would, before moto is asked."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        self._lock = Lock()

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        if environ["REQUEST_METHOD"] in {"GET", "HEAD"}:
            return self._app(environ, start)
        body = take_body(environ)
        with self._lock:
            problem = _problem(environ, body)
            if problem:
                return refuse(*problem, start)
            return list(self._app(environ, start))


def refuse(status: int, code: str, start: StartResponse) -> list[bytes]:
    """Answer with an error."""
    start(f"{status} {code}", [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()]


def _problem(environ: WSGIEnvironment, body: bytes) -> tuple[int, str] | None:
    checksum = environ.get("HTTP_X_AMZ_CHECKSUM_CRC32C")
    if checksum and base64.b64decode(checksum) != struct.pack(">I", google_crc32c.value(body)):
        return 400, "BadDigest"
    bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
    query = parse_qs(environ.get("QUERY_STRING", ""))
    found = s3_backends[ACCOUNT]["aws"].buckets.get(bucket)
    if found is None or "uploadId" not in query:
        return None
    if query["uploadId"][0] not in found.multiparts:
        return 404, "NoSuchUpload"
    wanted = environ.get("HTTP_IF_MATCH")
    if environ["REQUEST_METHOD"] == "POST" and wanted:
        existing = found.keys.get(key)
        if existing is None:
            return 404, "NoSuchKey"
        if existing.etag != wanted:
            return 412, "PreconditionFailed"
    return None

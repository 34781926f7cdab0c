"""A process with a server on loopback that speaks as much of Google Cloud Storage as hsstore does, and is strict.

It was written from Google's public documentation, beside no server of theirs. Conditions and writes are one step; the
condition of a resumable upload is looked at when it is completed; checksums are compared; parts are multiples of
256 KiB, but for the last; bytes that are sent twice are ignored; what is wrong with an upload ends it. Beyond
Google's: `/_token` gives the only token, `/_object/BUCKET/KEY` puts an object on no condition, and tells what was said of it.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from hsstore.objects.checksum import crc32c
from tests.objects.faulty import serve, take_body
from tests.objects.s3 import SECRET

if TYPE_CHECKING:
    from collections.abc import Mapping
    from wsgiref.types import StartResponse, WSGIEnvironment

UNIT_BYTES = 256 << 10
PAGE_OBJECTS = 20
UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")
LISTED = re.compile(r"/storage/v1/b/([^/]+)/o")
CODES = {403: "AccessDenied", 404: "NoSuchBucket", 412: "PreconditionFailed", 416: "InvalidRange"}
REASONS = {403: "forbidden", 404: "notFound", 412: "conditionNotMet"}


@dataclass(frozen=True, slots=True)
class Object:
    """An object."""

    data: bytes
    generation: int
    resource: Mapping[str, Any] = field(default_factory=dict)
    modified: float = field(default_factory=time.time)


@dataclass(slots=True)
class Session:
    """A resumable upload."""

    bucket: str
    key: str
    condition: str
    resource: Mapping[str, Any]
    data: bytes = b""
    status: int = 0
    """Once it has ended."""
    generation: int = 0


class RefusedError(Exception):
    """A status, and what is said with it."""

    def __init__(self, status: int, said: str = "", code: str = "") -> None:
        self.status, self.said, self.code = status, said, code


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class GoogleServer:
    """The server."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, Object]] = {"states": {}}
        self._sessions: dict[str, Session] = {}
        self._generations = count(time.time_ns() // 1000)
        self._lock = Lock()

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        """Answer one request."""
        body = take_body(environ)
        try:
            with self._lock:
                answer = self._answer(environ, body)
        except RefusedError as refused:
            return _refuse(refused, environ, start)
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        start(f"{answer.status} .", list(headers.items()))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def name(self, environ: WSGIEnvironment) -> tuple[str, str, str]:
        """Return a request's method, path and query, as S3 would have them."""
        method, path, query = environ["REQUEST_METHOD"], _path(environ), _query(environ)
        if listed := LISTED.fullmatch(path):
            more = {"continuation-token": query["pageToken"]} if "pageToken" in query else {}
            asked = {"list-type": "2", "prefix": query["prefix"], **more}
            return "GET", f"/{listed[1]}", urlencode(asked)
        upload = UPLOAD.fullmatch(path)
        if upload is None:
            return method, path, ""
        if "upload_id" not in query:
            is_whole = query["uploadType"] == "multipart"
            path = f"/{upload[1]}/{query['name']}"
            return ("PUT", path, "") if is_whole else ("POST", path, "uploads")
        session = self._sessions[query["upload_id"]]
        path, id_ = f"/{session.bucket}/{session.key}", f"uploadId={query['upload_id']}"
        if method == "DELETE":
            return method, path, id_
        first, _, size = _content_range(environ)
        part = f"partNumber={1 if first == 0 else 2}&{id_}"
        return ("PUT", path, part) if size is None else ("POST", path, id_)

    def refuse(self, status: int, environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        """Answer with an error."""
        return _refuse(RefusedError(status, "injected"), environ, start)

    def forget_conditions(self, environ: WSGIEnvironment) -> None:
        """Take the conditions off a request."""
        environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None)
        environ["hsstore.fault"] = "any version"

    def _answer(self, environ: WSGIEnvironment, body: bytes) -> Answer:
        path, query = _path(environ), _query(environ)
        if path == "/_token":
            return _json({"access_token": SECRET, "expires_in": 3600, "token_type": "Bearer"})
        if path.startswith("/_object/"):
            return self._backdoor(environ["REQUEST_METHOD"], path.removeprefix("/_object/"), body)
        upload = UPLOAD.fullmatch(path)
        if upload and "upload_id" in query:  # whoever knows it may
            return self._of_session(environ, self._sessions[query["upload_id"]], body)
        if environ.get("HTTP_AUTHORIZATION") != f"Bearer {SECRET}":
            raise RefusedError(401, "Invalid Credentials", "authError")
        if upload:
            do = self._put if query["uploadType"] == "multipart" else self._begin
            return do(environ, upload[1], query, body)
        if listed := LISTED.fullmatch(path):
            return self._list(self._bucket(listed[1]), query)
        bucket, _, key = path.lstrip("/").partition("/")
        return self._get(environ, self._bucket(bucket), key)

    def _bucket(self, name: str) -> dict[str, Object]:
        if name not in self._buckets:
            raise RefusedError(404, "The specified bucket does not exist.")
        return self._buckets[name]

    def _backdoor(self, method: str, name: str, body: bytes) -> Answer:
        bucket, _, key = name.partition("/")
        if method == "GET":
            return _json(self._buckets[bucket][key].resource)
        self._buckets[bucket][key] = Object(body, next(self._generations))
        return Answer()

    def _list(self, objects: dict[str, Object], query: Mapping[str, str]) -> Answer:
        after = query.get("pageToken", "")
        names = sorted(
            name for name in objects if name.startswith(query["prefix"]) and name > after
        )
        page = names[:PAGE_OBJECTS]
        items = [{"name": name, "size": str(len(objects[name].data))} for name in page]
        more = {"nextPageToken": page[-1]} if len(names) > len(page) else {}
        return _json(({"items": items} if items else {}) | more)

    def _get(self, environ: WSGIEnvironment, objects: dict[str, Object], key: str) -> Answer:
        if key not in objects:
            raise RefusedError(404, "The specified key does not exist.", "NoSuchKey")
        found = objects[key]
        if environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH") not in {None, str(found.generation)}:
            raise RefusedError(412)
        token = found.resource.get("metadata", {}).get("hsstore-put")
        headers = {
            "x-goog-generation": str(found.generation),
            "Last-Modified": formatdate(found.modified, usegmt=True),
            **({"x-goog-meta-hsstore-put": token} if token else {}),
        }
        asked = environ.get("HTTP_RANGE")
        if asked is None:
            return Answer(200, found.data, headers)
        first, last = asked.removeprefix("bytes=").split("-")
        size = len(found.data)
        begin = int(first) if first else max(size - int(last), 0)
        end = min(int(last) + 1, size) if first and last else size
        if begin >= size:
            raise RefusedError(416)
        return Answer(
            206,
            found.data[begin:end],
            headers | {"Content-Range": f"bytes {begin}-{end - 1}/{size}"},
        )

    def _put(
        self, environ: WSGIEnvironment, bucket: str, query: Mapping[str, str], body: bytes
    ) -> Answer:
        boundary = environ["CONTENT_TYPE"].partition("boundary=")[2].encode()
        _, resource, media, end = body.split(b"--" + boundary)
        assert end == b"--\r\n"
        fields, data = (part.partition(b"\r\n\r\n")[2][:-2] for part in (resource, media))
        given = json.loads(fields)
        _check(given["crc32c"], data)
        condition = _condition(environ, query["ifGenerationMatch"])
        return self._store(bucket, query["name"], condition, given, data)

    def _store(
        self, bucket: str, key: str, condition: str, resource: Mapping[str, Any], data: bytes
    ) -> Answer:
        objects = self._bucket(bucket)
        there = str(objects[key].generation) if key in objects else "0"
        if condition not in {"", there}:
            raise RefusedError(
                412, "At least one of the pre-conditions you specified did not hold."
            )
        objects[key] = Object(data, next(self._generations), resource)
        return _json({"generation": str(objects[key].generation)})

    def _begin(
        self, environ: WSGIEnvironment, bucket: str, query: Mapping[str, str], body: bytes
    ) -> Answer:
        self._bucket(bucket)
        condition = _condition(environ, query["ifGenerationMatch"])
        id_ = f"id{len(self._sessions)}"
        self._sessions[id_] = Session(bucket, query["name"], condition, json.loads(body))
        url = f"http://{environ['HTTP_HOST']}{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        return Answer(headers={"Location": f"{url}&upload_id={id_}"})

    def _of_session(self, environ: WSGIEnvironment, session: Session, body: bytes) -> Answer:
        if environ["REQUEST_METHOD"] == "DELETE":
            session.status = session.status or 499
            return Answer(499)
        if session.status == 200:
            return _json({"generation": str(session.generation)})
        if session.status:
            raise RefusedError(session.status)
        first, stop, size = _content_range(environ)
        if size is None and len(body) % UNIT_BYTES:
            raise RefusedError(400, "not a multiple of 256 KiB")
        self._take(session, first, stop, body, half=environ.get("hsstore.fault") == "half")
        if size is None:
            kept = {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}
            return Answer(308, headers=kept)
        return self._finish(environ, session, size)

    def _take(
        self, session: Session, first: int | None, stop: int, body: bytes, *, half: bool
    ) -> None:
        if first is None:
            return
        if len(body) != stop - first or first > len(session.data):
            raise RefusedError(400, "Content-Range")
        new = body[len(session.data) - first :]
        session.data += new[: len(new) // 2 // UNIT_BYTES * UNIT_BYTES] if half else new

    def _finish(self, environ: WSGIEnvironment, session: Session, size: int) -> Answer:
        if len(session.data) != size:
            return Answer(308, headers={"Range": f"bytes=0-{len(session.data) - 1}"})
        condition = _condition(environ, session.condition)
        try:
            _check(environ["HTTP_X_GOOG_HASH"].removeprefix("crc32c="), session.data)
        except RefusedError:
            session.status = 410
            raise
        done = self._store(session.bucket, session.key, condition, session.resource, session.data)
        session.generation = self._buckets[session.bucket][session.key].generation
        session.status, session.data = 200, b""
        return done


def _query(environ: WSGIEnvironment) -> dict[str, str]:
    return dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))


def _path(environ: WSGIEnvironment) -> str:
    path: str = environ["PATH_INFO"]
    return path.encode("latin-1").decode()


def _content_range(environ: WSGIEnvironment) -> tuple[int | None, int, int | None]:
    """Return the first byte, what is behind the last one, and the size, where they are known."""
    found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", environ["HTTP_CONTENT_RANGE"])
    assert found
    first = None if found[1] is None else int(found[1])
    return first, int(found[2] or -1) + 1, None if found[3] == "*" else int(found[3])


def _condition(environ: WSGIEnvironment, given: str) -> str:
    return "" if environ.get("hsstore.fault") == "any version" else given


def _check(given: str, data: bytes) -> None:
    if given != crc32c(data):
        raise RefusedError(
            400, f'Provided CRC32C "{given}" doesn\'t match calculated CRC32C "{crc32c(data)}".'
        )


def _json(what: object) -> Answer:
    return Answer(200, json.dumps(what).encode(), {"Content-Type": "application/json"})


def _refuse(refused: RefusedError, environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
    status = refused.status
    if "/storage/v1/" in _path(environ):
        reason = refused.code or REASONS.get(status, "invalid")
        error = {"code": status, "message": refused.said, "errors": [{"reason": reason}]}
        body = json.dumps({"error": error}).encode()
    else:
        code = refused.code or CODES.get(status, "InternalError")
        body = f"<Error><Code>{code}</Code><Message>{refused.said}</Message></Error>".encode()
    start(f"{status} .", [("Content-Length", str(len(body)))])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


if __name__ == "__main__":
    serve(GoogleServer())

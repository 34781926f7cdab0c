"""Bytes into object stores: whole objects and uploads in parts, each on a condition, tried again when the store fails.

An answer can be lost after the put was done. So each has a token of its own, and a condition that is not met is no
verdict before the object was looked at: with our token it is what we have put.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from dataclasses import dataclass
from functools import partial
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from hsstore.activity import operation, tick
from hsstore.errors import InputError
from hsstore.objects.checksum import crc32c
from hsstore.objects.client import call, start
from hsstore.objects.puts import ABSENT, ConflictError, Part, Put, Stat, UploadId, WritableBackend
from hsstore.objects.retry import pages, persist
from hsstore.objects.together import together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from concurrent.futures import Future

    from hsstore.activity import Kind

PART_BYTES = 16 << 20
"""Of each part but the last; S3 wants 5 MiB at least. On a slow line one must be through in three minutes."""
PARTS_AT_ONCE = 8
"""Parts of this process that are in memory and under way."""
MOST_PARTS = 10_000
"""S3 takes no more."""

GOOGLE = "storage.googleapis.com"

T = TypeVar("T")

_slots = BoundedSemaphore(PARTS_AT_ONCE)


def put(url: str, data: bytes, *, replaces: str) -> str:
    """Put a whole object, if that of its name is the one that it replaces.

    Parameters
    ----------
    replaces : str
        The version that was read, or ABSENT.

    Returns
    -------
    str
        The version of the new object.

    Raises
    ------
    ConflictError
        It is another one: nothing was written.
    UnreachableError
        No answer, also after several attempts. It may have been written, or still be.
    InputError
        The object store refuses.
    """
    (version,) = put_many([Put(url, data, replaces)])
    if version is None:
        raise ConflictError(url)
    return version


def put_many(puts: Sequence[Put]) -> list[str | None]:
    """Put objects of one store side by side; None where an object is not what was to be replaced.

    Raises
    ------
    UnreachableError, InputError
        As in `put`, of the first one that fails; others may have been written.
    """
    if not puts:
        return []
    return _call("write", puts[0].url, partial(_put_all, puts))


def head(url: str) -> Stat | None:
    """Ask for an object without its bytes; None where the store says that there is none.

    Raises
    ------
    UnreachableError, InputError
    """
    return _call("read", url, partial(_head, url))


def version_of(url: str) -> str:
    """Return the version of the object that has this name now, or ABSENT; raises what `head` does."""
    found = head(url)
    return ABSENT if found is None else found.version


@dataclass(frozen=True, slots=True)
class SentUpload:
    """An upload whose parts are all with the store, and which is no object yet. Any process can complete it."""

    upload: UploadId
    token: str
    replaces: str
    parts: tuple[Part, ...]

    def complete(self) -> str:
        """Make it an object, if that of its name is the one that it replaces; return its version.

        Raises
        ------
        ConflictError, UnreachableError, InputError
            As in `put`.
        """
        return _call("write", self.upload.url, partial(_complete, self))

    def abort(self) -> None:
        """Give it up; nothing where it is an object by now.

        Raises
        ------
        UnreachableError, InputError
        """
        abort(self.upload)


class Upload:
    """An object that is sent in parts, while it grows. Not thread-safe.

    Parameters
    ----------
    replaces : str
        The version that it is to replace, or ABSENT.

    Raises
    ------
    UnreachableError, InputError
    """

    def __init__(self, url: str, *, replaces: str) -> None:
        self._url = url
        self._replaces = replaces
        self._token = uuid.uuid4().hex
        self._upload = _call("write", url, partial(_begin, url, self._token, replaces))
        self._parts: list[Future[Part]] = []

    def part(self, read: Callable[[], bytes]) -> None:
        """Send the next part in the background; waits while too many are under way.

        Parameters
        ----------
        read : callable
            Returns its bytes: called here, when there is room for them. All parts but the last have PART_BYTES.

        Raises
        ------
        ConflictError, UnreachableError, InputError
            Of an earlier part.
        """
        if len(self._parts) == MOST_PARTS:
            raise InputError(
                f"{self._url}: an object has at most {MOST_PARTS} parts of {PART_BYTES >> 20} MiB; choose smaller shards"
            )
        with operation("fsync", self._url):  # what was written before is waited for, however long
            _slots.acquire()
        try:
            self._raise_first_error()
            data = read()
            before = self._parts[-1] if self._parts else None
            sending = start(
                self._url,
                partial(_send, self._upload, len(self._parts) + 1, data, crc32c(data), before),
            )
        except BaseException:
            _slots.release()
            raise
        sending.add_done_callback(lambda _: _slots.release())
        self._parts.append(sending)

    def finish(self) -> SentUpload:
        """Wait until all parts are with the store.

        Raises
        ------
        ConflictError, UnreachableError, InputError
        """
        with operation("fsync", self._url):
            parts = tuple(sending.result() for sending in self._parts)
        return SentUpload(self._upload, self._token, self._replaces, parts)

    def abort(self) -> None:
        """Give it up, parts that are under way too.

        Raises
        ------
        UnreachableError, InputError
        """
        self.cancel()
        abort(self._upload)

    def cancel(self) -> None:
        """Send no more of it, without a request: what the store has of it stays there."""
        for sending in self._parts:
            sending.cancel()

    def _raise_first_error(self) -> None:
        for sending in self._parts:
            if sending.done():
                sending.result()


def abort(upload: UploadId) -> None:
    """Give up an upload; nothing where there is none any more.

    Raises
    ------
    UnreachableError, InputError
    """
    _call("write", upload.url, partial(_abort, upload))


def find_uploads(url: str) -> list[UploadId]:
    """List what was begun and not completed of objects whose URLs begin with this text.

    Raises
    ------
    UnreachableError, InputError
    """
    return _call("read", url, partial(_uploads, url))


async def _put_all(puts: Sequence[Put], backend: WritableBackend) -> list[str | None]:
    return await together(puts, partial(_put, backend))


async def _put(backend: WritableBackend, put: Put) -> str | None:
    token = uuid.uuid4().hex
    attempt = partial(backend.put, put, crc32c(put.data), token)
    try:
        return await persist(backend, "write", put.url, attempt)
    except ConflictError:
        return await _version_if_ours(put.url, token, backend)


async def _version_if_ours(url: str, token: str, backend: WritableBackend) -> str | None:
    found = await _head(url, backend)
    return found.version if found is not None and found.token == token else None


async def _head(url: str, backend: WritableBackend) -> Stat | None:
    return await persist(backend, "read", url, partial(backend.head, url))


async def _begin(url: str, token: str, replaces: str, backend: WritableBackend) -> UploadId:
    # Where an answer got lost there is another one by now. It has no parts, and cannot be told from an heir's:
    # who claims the span next ends it.
    return await persist(backend, "write", url, partial(backend.begin, url, token, replaces))


async def _send(
    upload: UploadId,
    number: int,
    data: bytes,
    checksum: str,
    before: Future[Part] | None,
    backend: WritableBackend,
) -> Part:
    part_before: Part | None = None
    if before is not None and backend.in_order:
        part_before = await asyncio.wrap_future(before)
    attempt = partial(backend.send, upload, number, data, checksum, part_before)
    part = await persist(backend, "write", upload.url, attempt)
    tick()
    return part


async def _complete(sent: SentUpload, backend: WritableBackend) -> str:
    url = sent.upload.url
    attempt = partial(backend.complete, sent.upload, sent.parts, sent.replaces)
    try:
        return await persist(backend, "write", url, attempt)
    except ConflictError:
        version = await _version_if_ours(url, sent.token, backend)
        if version is None:
            raise
        return version


async def _abort(upload: UploadId, backend: WritableBackend) -> None:
    await persist(backend, "write", upload.url, partial(backend.abort, upload))


async def _uploads(url: str, backend: WritableBackend) -> list[UploadId]:
    return [upload async for page in pages(backend, url, backend.uploads) for upload in page]


def _call(kind: Kind, url: str, work: Callable[[WritableBackend], Awaitable[T]]) -> T:
    _refuse_read_only(url)
    return call(kind, url, work)


def _refuse_read_only(url: str) -> None:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if url.startswith("s3:") and (urlsplit(endpoint).hostname or "").endswith(GOOGLE):
        raise InputError(
            f"Google's S3 interface writes on no condition, so that it can only be read: write gs:// instead of {url}"
        )

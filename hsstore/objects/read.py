"""Read ranges of objects from any thread: requests go out side by side on fsspec's own event loop."""

from __future__ import annotations

import asyncio
import os
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from fsspec.asyn import sync

from hsstore.activity import operation
from hsstore.objects.answer import Answer, Backend, Request, missing
from hsstore.objects.retry import persist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hsstore.objects.generic import FsspecBackend
    from hsstore.objects.s3 import S3Backend

AT_ONCE = 32
"""Requests of one call that are under way together."""


def read(request: Request) -> Answer:
    """Read one range.

    Raises
    ------
    FileNotFoundError
        The object store says that there is no such object: an error is never taken for that.
    OSError
        ESTALE: the object is not of the version that was asked for.
    UnreachableError
        No answer, also after several attempts.
    InputError
        The object store refuses.
    """
    (answer,) = read_many([request])
    if answer is None:
        raise missing(request.url)
    return answer


def read_many(requests: Sequence[Request]) -> list[Answer | None]:
    """Read ranges of objects of one store side by side; None where the store says that there is no object.

    Raises
    ------
    OSError, UnreachableError, InputError
        As in `read`, of the first one that fails.
    """
    if not requests:
        return []
    url = requests[0].url
    backend = _backend(_protocol(url), os.getpid())
    with operation("read", url):
        answers: list[Answer | None] = sync(backend.loop, _fetch_all, backend, requests)
    return answers


def find(url: str) -> dict[str, int]:
    """List the objects below a URL, by the rest of their names, with their sizes in bytes.

    Raises
    ------
    UnreachableError, InputError
        As in `read`.
    """
    backend = _backend(_protocol(url), os.getpid())
    with operation("read", url):
        attempt = partial(backend.find, url)
        found: dict[str, int] = sync(backend.loop, persist, backend, "list", url, attempt)
    return found


async def _fetch_all(backend: Backend, requests: Sequence[Request]) -> list[Answer | None]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def fetch(request: Request) -> Answer | None:
        async with slots:
            try:
                attempt = partial(backend.fetch, request)
                return await persist(backend, "read", request.url, attempt)
            except FileNotFoundError:
                return None

    tasks = [asyncio.ensure_future(fetch(request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:  # after an error nothing goes on behind the caller's back
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _protocol(url: str) -> str:
    return url.partition("://")[0]


@lru_cache(maxsize=8)
def _backend(protocol: str, process: int) -> S3Backend | FsspecBackend:  # noqa: ARG001
    """Connect, once a process: what a fork leaves of a connection is not to be used."""
    if protocol == "s3":
        from hsstore.objects.s3 import S3Backend  # noqa: PLC0415  # 400 ms, and an extra

        return S3Backend()
    from hsstore.objects.generic import FsspecBackend  # noqa: PLC0415

    return FsspecBackend(protocol)

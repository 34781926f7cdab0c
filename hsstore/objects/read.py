"""Read ranges of objects from any thread: requests go out side by side on fsspec's own event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hsstore.objects.answer import Answer, Backend, NoSuchObjectError, Request, missing
from hsstore.objects.client import call
from hsstore.objects.retry import pages, persist
from hsstore.objects.together import together

if TYPE_CHECKING:
    from collections.abc import Sequence


def read(request: Request) -> Answer:
    """Read one range.

    Raises
    ------
    NoSuchObjectError
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
    return call("read", requests[0].url, partial(_fetch_all, requests))


def find(url: str) -> dict[str, int]:
    """List the objects below a URL, by the rest of their names, with their sizes in bytes.

    Raises
    ------
    UnreachableError, InputError
        As in `read`.
    """
    return call("read", url, partial(_find_all, url))


async def _find_all(url: str, backend: Backend) -> dict[str, int]:
    found: dict[str, int] = {}
    async for page in pages(backend, url, backend.find):
        found |= page
    return found


async def _fetch_all(requests: Sequence[Request], backend: Backend) -> list[Answer | None]:
    return await together(requests, partial(_fetch, backend))


async def _fetch(backend: Backend, request: Request) -> Answer | None:
    try:
        return await persist(backend, "read", request.url, partial(backend.fetch, request))
    except NoSuchObjectError:
        return None

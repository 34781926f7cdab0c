"""Try again what an object store did not answer: errors of its own, slow-downs, connections that broke.

The packages below are told to try once, so that what happens is decided, counted and tested here.
"""

from __future__ import annotations

import asyncio
import errno
import random
import re
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hsstore.errors import HsstoreError, InputError, UnreachableError
from hsstore.objects.answer import NoSuchObjectError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hsstore.objects.answer import Refusing

T = TypeVar("T")

ATTEMPTS = 9
_attempts = ATTEMPTS
FIRST_DELAY_SECONDS = 0.1
"""Doubled each time: up to 23 seconds in all, and what the attempts take."""
LONGEST_DELAY_SECONDS = 10.0

_USER = re.compile(r"//[^\s]*@")


def try_at_most(attempts: int) -> None:
    """Have this process give up earlier: one that only looks, for somebody who waits."""
    global _attempts  # noqa: PLW0603  # one number a process
    _attempts = attempts


async def persist(backend: Refusing, what: str, url: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Call until it works, or until it is hopeless.

    Parameters
    ----------
    what : str
        The operation, such as "read".

    Raises
    ------
    NoSuchObjectError
    OSError
        ESTALE.
    InputError
        The store refuses.
    UnreachableError
        No attempt worked.
    """
    began, attempts = time.monotonic(), _attempts
    last: Exception | None = None
    for number in range(attempts):
        if number:
            await asyncio.sleep(_delay_seconds(number))
        try:
            return await attempt()
        except (NoSuchObjectError, HsstoreError):
            raise
        except Exception as error:  # noqa: BLE001  # of any package that fsspec uses
            _raise_if_hopeless(backend, what, url, error)
            last = error
    raise UnreachableError(
        f"cannot {what} {url}: {describe(last)}; tried {attempts} times in {time.monotonic() - began:.0f} s. "
        "See whether the object store can be reached, then run the same command again"
    )


async def pages(
    backend: Refusing, url: str, list_page: Callable[[str, str], Awaitable[tuple[T, str]]]
) -> AsyncIterator[T]:
    """Yield the pages of a listing, each tried again by itself: a large store has a thousand of them.

    Raises
    ------
    InputError, UnreachableError
        As `persist`.
    """
    after, is_last = "", False
    while not is_last:
        page, after = await persist(backend, "list", url, partial(list_page, url, after))
        yield page
        is_last = not after


def _raise_if_hopeless(backend: Refusing, what: str, url: str, error: Exception) -> None:
    if is_stale(error):
        raise error
    if refused := backend.refusal(error):
        raise InputError(f"cannot {what} {url}: {_clean(refused)}") from None


def is_stale(error: Exception) -> bool:
    """Say whether the object was replaced."""
    return isinstance(error, OSError) and error.errno == errno.ESTALE


def _delay_seconds(number: int) -> float:
    """Return how long to wait before an attempt: random, or all who were told to slow down come at once."""
    longest = min(FIRST_DELAY_SECONDS * 2 ** (number - 1), LONGEST_DELAY_SECONDS)
    return float(longest * random.uniform(0.5, 1.0))  # noqa: S311  # no secret


def describe(error: Exception | None) -> str:
    """Say what went wrong in one line, without what an endpoint's URL may hold."""
    return _clean(f"{type(error).__name__}: {error}")


def _clean(text: str) -> str:
    return _USER.sub("//***@", " ".join(text.split()))

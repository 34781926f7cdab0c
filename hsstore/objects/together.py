"""Many requests of one call, side by side."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32
"""Requests of one call that are under way together."""


async def together(items: Sequence[T], work: Callable[[T], Coroutine[Any, Any, R]]) -> list[R]:
    """Do the same with each; after an error nothing goes on behind the caller's back.

    Raises
    ------
    Exception
        Of the first one that fails.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with slots:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

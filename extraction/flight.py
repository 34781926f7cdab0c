"""How many requests are in flight at once: fewer when the server has no room, more when it has."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GROW_AFTER = 16
"""Dumps in a row after which one more request may fly."""


class FlightCap:
    """A semaphore whose size follows the server: halved when it is busy, grown one by one."""

    def __init__(self, maximum: int) -> None:
        self.cap = maximum
        self.in_flight = 0
        self._maximum = maximum
        self._good_in_row = 0
        self._landed = asyncio.Condition()

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[None]:
        """Hold one of the seats; wait for it."""
        async with self._landed:
            await self._landed.wait_for(lambda: self.in_flight < self.cap)
            self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            async with self._landed:
                self._landed.notify_all()

    def busy(self) -> None:
        """Take note that the server had no room for a capture."""
        self.cap = max(1, self.cap // 2)
        self._good_in_row = 0

    def good(self) -> None:
        """Take note that a dump came."""
        self._good_in_row += 1
        if self._good_in_row >= GROW_AFTER and self.cap < self._maximum:
            self.cap += 1
            self._good_in_row = 0

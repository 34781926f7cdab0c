"""How many requests are in flight at once: fewer when the server has no room, more when it has."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GROW_AFTER = 16
"""Dumps in a row after which one more request may fly."""
BUSY_IN_ROW = 8
BUSY_SECONDS = 60.0
"""After so many busy answers without a dump, and for so long after the last one, a server that
computes brings us nothing. Longer than the pauses between requests: a slow prefill that follows may
bring something again."""


class FlightCap:
    """A semaphore whose size follows the server: halved when it is busy, grown one by one."""

    def __init__(self, maximum: int) -> None:
        self.cap = maximum
        self.in_flight = 0
        self._maximum = maximum
        self._good_in_row = 0
        self._busy_in_row = 0
        self._busy_reason = ""
        self._busy_at = 0.0
        self._wanting_alone = 0
        self._landed = asyncio.Condition()

    @asynccontextmanager
    async def seat(self, *, alone: bool = False) -> AsyncIterator[None]:
        """Hold one of the seats; wait for it.

        Parameters
        ----------
        alone : bool
            Wait until all others are empty, and keep them so.
        """
        self._wanting_alone += alone
        try:
            async with self._landed:
                await self._landed.wait_for(self._may_fly_alone if alone else self._may_fly)
                self.in_flight += 1
            try:
                yield
            finally:
                self.in_flight -= 1
        finally:
            self._wanting_alone -= alone
            async with self._landed:
                self._landed.notify_all()

    @property
    def takes_more(self) -> bool:
        """Whether nobody wants to be alone."""
        return not self._wanting_alone

    @property
    def only_busy(self) -> str:
        """Why no dump comes although the server answers; empty while some do."""
        lately = time.monotonic() - self._busy_at < BUSY_SECONDS
        return self._busy_reason if self._busy_in_row >= BUSY_IN_ROW and lately else ""

    def busy(self, reason: str) -> None:
        """Take note that the server had no room for a capture."""
        self.cap = max(1, self.cap // 2)
        self._good_in_row = 0
        self._busy_in_row += 1
        self._busy_reason = reason
        self._busy_at = time.monotonic()

    def good(self) -> None:
        """Take note that a dump came."""
        self._busy_in_row = 0
        self._good_in_row += 1
        if self._good_in_row >= GROW_AFTER and self.cap < self._maximum:
            self.cap += 1
            self._good_in_row = 0

    def _may_fly(self) -> bool:
        return self.in_flight < self.cap and self.takes_more

    def _may_fly_alone(self) -> bool:
        return not self.in_flight

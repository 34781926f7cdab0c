"""Admission by bytes: a sample is asked for only when its bytes have a place to go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ByteBudget:
    """Bytes that may be in use at once.

    Parameters
    ----------
    relieve : callable, optional
        Called with the bytes that are missing when an acquisition would have to wait; it may
        release some.
    """

    def __init__(self, limit_bytes: int, relieve: Callable[[int], object] | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.relieve = relieve or (lambda _: None)
        self.on_release: Callable[[], object] = str
        """Called when there may be room again."""
        self._released = asyncio.Event()

    async def acquire(self, nbytes: int) -> None:
        """Wait until `nbytes` fit, and take them.

        Raises
        ------
        ValueError
            They would never fit.
        """
        if nbytes > self.limit_bytes:
            raise ValueError(f"{nbytes} bytes can never fit into a budget of {self.limit_bytes}")
        while (missing := self.used_bytes + nbytes - self.limit_bytes) > 0:
            self._released.clear()
            self.relieve(missing)
            if not self._released.is_set():
                await self._released.wait()
        self.take(nbytes)

    def take(self, nbytes: int) -> None:
        """Take bytes that are in use already, whether they fit or not."""
        self.used_bytes += nbytes

    def fits(self, nbytes: int) -> bool:
        """Tell whether so many bytes could be taken now, others given back first if need be."""
        missing = self.used_bytes + nbytes - self.limit_bytes
        if 0 < missing <= self.used_bytes:
            self.relieve(missing)
        return self.used_bytes + nbytes <= self.limit_bytes

    def release(self, nbytes: int) -> None:
        """Give bytes back."""
        self.used_bytes -= nbytes
        self.recheck()

    def recheck(self) -> None:
        """Let those who wait try again: there may be something to relieve now."""
        self._released.set()
        self.on_release()

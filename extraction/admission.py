"""Which server gets the next sample: whoever has a free seat, and room for its bytes.

A server that is slow frees its seats seldom, so it gets less.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from extraction.lane import Lane

AHEAD = 8
"""Samples that wait for a server, at most, before the next one is brought: a freed seat is taken at
once, and nothing is bound to a server before it can be sent."""


@dataclass(slots=True, eq=False)
class _Waiting:
    nbytes: int
    placed: asyncio.Future[Lane | None]


class Admission:
    """Places samples, in their order, on the lanes that are open here.

    Parameters
    ----------
    limit_bytes : callable
        Returns the size of the largest dump that any server may ever hold.
    """

    def __init__(self, limit_bytes: Callable[[], float]) -> None:
        self.lanes: list[Lane] = []
        self.nobody_since_seconds: float | None = asyncio.get_running_loop().time()
        """On the loop's clock; None while there are lanes."""
        self._limit_bytes = limit_bytes
        self._waiting: deque[_Waiting] = deque()
        self._moved = asyncio.Event()
        self._look_soon: asyncio.Handle | None = None

    def open(self, lane: Lane) -> None:
        """Give samples to this lane from now on."""
        if lane not in self.lanes:
            lane.budget.on_release = self.look
            self.lanes.append(lane)
            self.nobody_since_seconds = None
        self.look()

    def close(self, lane: Lane) -> None:
        """Give it no more."""
        if lane in self.lanes:
            self.lanes.remove(lane)
            if not self.lanes:
                self.nobody_since_seconds = asyncio.get_running_loop().time()
        self.look()

    async def wait_for_turn(self) -> None:
        """Wait until only few samples wait for a server that is there."""
        await asyncio.sleep(0)  # those that were brought just now begin to wait
        while sum(map(self._is_in_the_way, self._waiting)) >= AHEAD:
            await self.wait_for_change()

    async def wait_for_change(self) -> None:
        """Wait until something was taken or released, on any lane."""
        self._moved.clear()
        await self._moved.wait()

    async def place(self, nbytes: int, *, again: bool) -> Lane | None:
        """Wait for a lane with a free seat and room for so many bytes, and take both.

        Parameters
        ----------
        again : bool
            It was asked for before: its block waits for it, so it goes first.

        Returns
        -------
        Lane or None
            None where no server has such a budget.
        """
        one = _Waiting(nbytes, asyncio.get_running_loop().create_future())
        (self._waiting.appendleft if again else self._waiting.append)(one)
        self.look()
        try:
            return await one.placed
        except asyncio.CancelledError:
            lane = None if one.placed.cancelled() else one.placed.result()
            if lane is not None:
                self.leave_seat(lane)
                lane.budget.release(nbytes)
            raise

    def leave_seat(self, lane: Lane) -> None:
        """Free the seat of a sample whose dump came, or will not; its bytes are another matter."""
        lane.bound -= 1
        self.look()

    def look(self) -> None:
        """Place what can be placed, soon: whoever calls may be in the middle of something."""
        if self._look_soon is None:
            self._look_soon = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._look_soon = None
        self._moved.set()
        try:
            self._place_waiting()
        except Exception as error:  # noqa: BLE001  # of a callback nobody hears: let a waiter raise it
            waiters = [one.placed for one in self._waiting if not one.placed.done()]
            waiters[0].set_exception(error)

    def _place_waiting(self) -> None:
        for one in list(self._waiting):
            if one.placed.done():  # cancelled
                self._waiting.remove(one)
                continue
            lane = self._choose(one.nbytes)
            if lane is not None:
                lane.bound += 1
                lane.budget.take(one.nbytes)
                lane.spool.trim_free(max(0, lane.budget.limit_bytes - lane.budget.used_bytes))
            elif one.nbytes <= self._limit_bytes():
                if self._is_in_the_way(one):
                    return  # those behind it have to wait
                continue
            self._waiting.remove(one)
            one.placed.set_result(lane)

    def _is_in_the_way(self, one: _Waiting) -> bool:
        """Tell whether those behind it have to wait: not if it fits only a server that is away."""
        return not self.lanes or any(one.nbytes <= lane.budget.limit_bytes for lane in self.lanes)

    def _choose(self, nbytes: int) -> Lane | None:
        """Choose the lane that is least busy; one that must give something back first comes last."""
        free = [lane for lane in self.lanes if lane.has_seat and nbytes <= lane.budget.limit_bytes]
        free.sort(key=lambda lane: (lane.bound / lane.flight.cap, lane.tokens_asked))
        for lane in free:
            if lane.budget.used_bytes + nbytes <= lane.budget.limit_bytes:
                return lane
        return next((lane for lane in free if lane.budget.fits(nbytes)), None)

"""Which server gets the next sample, as `extraction/admission.py` does it.

Samples are placed in their order: on the least busy server with a free seat whose spool has room for
the dump. Bytes are charged then, and given back when the dump is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import simpy

    from tools.simulation.queues import Line


@dataclass(slots=True, eq=False)
class Lane:
    """A server and its spool."""

    prefill: Line
    hand_over: Line
    seats: int
    """`--max-in-flight`."""
    limit_bytes: int
    bound: int = 0
    """Samples that were given to it, and whose dumps have not come."""
    used_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        """What the spool budget leaves."""
        return self.limit_bytes - self.used_bytes


class Admission:
    """Places samples on lanes.

    Parameters
    ----------
    relieve : callable
        Gives some bytes of a lane's spool back early, as far as it can.

    Attributes
    ----------
    lacks_room : bool
        Whether a seat is free that the next sample cannot take for want of memory.
    """

    def __init__(
        self, env: simpy.Environment, lanes: list[Lane], relieve: Callable[[Lane, int], None]
    ) -> None:
        self._env = env
        self._lanes = lanes
        self._relieve = relieve
        self._waiting: deque[tuple[int, simpy.Event]] = deque()
        self.lacks_room = False

    @property
    def waiting(self) -> int:
        """Samples that have no server yet."""
        return len(self._waiting)

    def place(self, size_bytes: int) -> simpy.Event:
        """Queue a sample up; the event has its lane, with a seat and bytes taken."""
        placed = self._env.event()
        self._waiting.append((size_bytes, placed))
        self.look()
        return placed

    def look(self) -> None:
        """Place what can be placed."""
        while self._waiting:
            size_bytes, placed = self._waiting[0]
            free = [lane for lane in self._lanes if lane.bound < lane.seats]
            lane = self._choose(free, size_bytes)
            self.lacks_room = bool(free) and lane is None
            if lane is None:
                return
            self._waiting.popleft()
            lane.bound += 1
            lane.used_bytes += size_bytes
            placed.succeed(lane)
        self.lacks_room = False

    def _choose(self, free: list[Lane], size_bytes: int) -> Lane | None:
        free.sort(key=_load)
        for lane in free:
            if lane.room_bytes >= size_bytes:
                return lane
        for lane in free:
            self._relieve(lane, size_bytes - lane.room_bytes)
            if lane.room_bytes >= size_bytes:
                return lane
        return None


def _load(lane: Lane) -> int:
    return lane.bound

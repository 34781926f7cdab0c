"""Two kinds of queue: a line, where one is served after the other, and a capacity that jobs share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    Steps = Generator[simpy.Event, Any, None]

ROUNDING = 1e-9
"""Of a job, what is taken for nothing left."""


class Line:
    """One server, first come, first served: whoever asks is told at once when it will be done.

    Attributes
    ----------
    promised_seconds : float
        Service of all who have come so far.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._free_at = 0.0
        self.promised_seconds = 0.0

    def serve(self, seconds: float) -> simpy.Event:
        """Queue up; the event comes when `seconds` of service are over."""
        now = self._env.now
        self._free_at = max(self._free_at, now) + seconds
        self.promised_seconds += seconds
        return self._env.timeout(self._free_at - now)

    @property
    def busy(self) -> bool:
        """Whether somebody is being served."""
        return self._free_at > self._env.now

    @property
    def busy_seconds(self) -> float:
        """For how long it has served until now."""
        return self.promised_seconds - max(0.0, self._free_at - self._env.now)


@dataclass(slots=True, eq=False)
class _Job:
    left: float
    most: float
    done: simpy.Event
    rate: float = 0.0


class Shared:
    """A capacity, in units a second, that all jobs share evenly, none getting more than its most.

    Parameters
    ----------
    capacity : float
        May be 0: then everything stands still.

    Attributes
    ----------
    moved : float
        Units of all jobs until the last event.
    """

    def __init__(self, env: simpy.Environment, capacity: float) -> None:
        self._env = env
        self._capacity = capacity
        self._jobs: list[_Job] = []
        self._since = env.now
        self._version = 0
        self._moving = env.event()
        self.moved = 0.0

    @property
    def stands_still(self) -> bool:
        """Whether the capacity is 0."""
        return self._capacity == 0

    def work(self, amount: float, most: float = math.inf) -> simpy.Event:
        """Begin a job; the event comes when `amount` units are done.

        Parameters
        ----------
        most : float
            Units a second that it can use.
        """
        done = self._env.event()
        if amount <= 0:
            return done.succeed()
        self._advance()
        self._jobs.append(_Job(amount, most, done))
        self._plan()
        return done

    def set_capacity(self, capacity: float) -> None:
        """Go on with another capacity."""
        self._advance()
        self._capacity = capacity
        if capacity and not self._moving.triggered:
            self._moving.succeed()
        self._plan()

    def wait_until_moving(self) -> Steps:
        """Return at once, unless everything stands still."""
        while self.stands_still:
            if self._moving.triggered:
                self._moving = self._env.event()
            yield self._moving

    def moved_until_now(self) -> float:
        """Return the units of all jobs."""
        self._advance()
        return self.moved

    def _advance(self) -> None:
        seconds = self._env.now - self._since
        self._since = self._env.now
        for job in self._jobs:
            job.left -= job.rate * seconds
            self.moved += job.rate * seconds

    def _plan(self) -> None:
        """Share the capacity out, those who can use least first, and look who is done next."""
        self._version += 1
        self._share_out()
        first, seconds = None, math.inf
        for job in self._jobs:
            if job.rate > 0 and job.left / job.rate < seconds:
                first, seconds = job, job.left / job.rate
        if first is not None:
            timer = self._env.timeout(max(0.0, seconds), (self._version, first))
            timer.callbacks.append(self._finish)

    def _share_out(self) -> None:
        left, jobs = self._capacity, len(self._jobs)
        if jobs > 1:
            self._jobs.sort(key=_most)
        for job in self._jobs:
            job.rate = min(job.most, left / jobs)
            left -= job.rate
            jobs -= 1

    def _finish(self, timer: simpy.Event) -> None:
        version, first = cast("tuple[int, _Job]", timer.value)
        if version != self._version:
            return  # shared out anew since
        self._advance()
        first.left = 0.0
        for job in [job for job in self._jobs if job.left <= ROUNDING]:
            self._jobs.remove(job)
            job.done.succeed()
        self._plan()


def _most(job: _Job) -> float:
    return job.most

"""What is looked at while a simulation runs: the time series, and why servers were idle."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import simpy

    from tools.simulation.queues import Shared, Steps
    from tools.simulation.scenario import Stall
    from tools.simulation.worker import Worker

LOOKS_A_STALL = 200
"""So often, at least, is looked while a stall lasts, and as closely for a while after it."""
AFTER_SECONDS = 120.0
"""How long that is at least; else as long as the stall."""


@dataclass(slots=True)
class Series:
    """One value a look, all of the workers that are simulated together.

    Attributes
    ----------
    output_bytes, busy_seconds, tokens : list of float
        Counted from the start: taken by the output, of all servers, committed.
    """

    seconds: list[float] = field(default_factory=list)
    spool_bytes: list[float] = field(default_factory=list)
    landed_bytes: list[float] = field(default_factory=list)
    output_bytes: list[float] = field(default_factory=list)
    busy_seconds: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)


class Recorder:
    """Looks at the workers again and again.

    Attributes
    ----------
    idle_seconds : dict
        Of all servers, by what their client was at; as exact as the looks are close.
    """

    def __init__(
        self,
        env: simpy.Environment,
        workers: list[Worker],
        output: Shared,
        stalls: tuple[Stall, ...],
        look_seconds: float,
    ) -> None:
        self._env = env
        self._workers = workers
        self._output = output
        self._stalls = stalls
        self._look_seconds = look_seconds
        self.series = Series()
        self.idle_seconds: dict[str, float] = defaultdict(float)
        env.process(self._run())

    def _run(self) -> Steps:
        while True:
            self.look()
            pause = self._pause_seconds()
            for worker in self._workers:
                for lane in worker.lanes:
                    self.idle_seconds[worker.at] += 0.0 if lane.prefill.busy else pause
            yield self._env.timeout(pause)

    def look(self) -> None:
        """Take one value of each."""
        series, workers = self.series, self._workers
        series.seconds.append(self._env.now)
        series.spool_bytes.append(sum(worker.spool_bytes for worker in workers))
        series.landed_bytes.append(sum(worker.landed_bytes for worker in workers))
        series.output_bytes.append(self._output.moved_until_now())
        series.busy_seconds.append(
            sum(lane.prefill.busy_seconds for worker in workers for lane in worker.lanes)
        )
        series.tokens.append(sum(worker.tokens_committed for worker in workers))

    def _pause_seconds(self) -> float:
        for stall in self._stalls:
            end = stall.at_seconds + stall.seconds + max(stall.seconds, AFTER_SECONDS)
            if stall.at_seconds <= self._env.now < end:
                return min(self._look_seconds, stall.seconds / LOOKS_A_STALL)
            if stall.at_seconds > self._env.now:
                return min(self._look_seconds, stall.at_seconds - self._env.now)
        return self._look_seconds

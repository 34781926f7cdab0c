"""One `hsstore extract`: what `extraction/pipeline.py` does, as a process of the simulation.

Blocks are opened in order, few at once; a sample's bytes are charged to a spool before it is asked for,
and given back when its block is committed, or earlier when the spool has no room for the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import simpy

from extraction.block_order import open_cap
from tools.simulation.admission import Admission, Lane
from tools.simulation.queues import Line
from tools.simulation.sink import Item, Sink
from tools.simulation.work import dump_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.simulation.queues import Shared, Steps
    from tools.simulation.scenario import Scenario

AHEAD = 8
"""Samples that wait for a server, at most, before the next one is brought."""
STARTING, ASKING, NO_ROOM, ENOUGH_OPEN, NOTHING_LEFT = (
    "starting",
    "asking",
    "spool full",
    "enough unwritten",
    "nothing left",
)
"""What a worker is at: why a server may be idle."""


@dataclass(slots=True, eq=False)
class Block:
    """A block that is being filled."""

    waiting: int
    """Samples that are not appended."""
    held: list[tuple[Lane, int]] = field(default_factory=list)
    """Spool and bytes of the dumps that are appended and still there, oldest first."""


class Worker:
    """One client process with its servers.

    Attributes
    ----------
    peak_spool_bytes, peak_unwritten_bytes, peak_landed_bytes : int
        Of all its spools: charged; of those, not in a shard yet; of those, dumps that have come.
    early_samples : int
        Dumps given back before their commit: a kill would have cost asking again for them.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scenario: Scenario,
        output: Shared,
        blocks: Iterator[list[int]],
    ) -> None:
        self._env = env
        self._scenario = scenario
        self._blocks = blocks
        workers = scenario.workers
        spool_bytes, memory_bytes = int(workers.spool_gb * 1e9), workers.memory_gb * 1e9
        self.lanes = [
            Lane(Line(env), Line(env), workers.max_in_flight, spool_bytes)
            for _ in range(scenario.servers.per_worker)
        ]
        self.loop = Line(env)
        self.sink = Sink(env, scenario, output, self._appended)
        self._admission = Admission(env, self.lanes, self._relieve)
        self._memory = simpy.Container(env, memory_bytes, init=memory_bytes)
        self._open: list[Block] = []
        self._news = env.event()
        self._dispatch_at = STARTING
        self.unwritten_bytes = self.landed_bytes = 0
        self.peak_spool_bytes = self.peak_unwritten_bytes = self.peak_landed_bytes = 0
        self.early_samples = self.tokens_committed = 0
        self.done = env.process(self._dispatch())

    @property
    def spool_bytes(self) -> int:
        """Bytes that are charged now."""
        return sum(lane.used_bytes for lane in self.lanes)

    @property
    def at(self) -> str:
        """What it is at."""
        return NO_ROOM if self._admission.lacks_room else self._dispatch_at

    # --- dispatch -----------------------------------------------------------------------------

    def _dispatch(self) -> Steps:
        yield self._env.timeout(self._scenario.workers.start_seconds or 0)
        self._dispatch_at = ASKING
        for tokens in self._blocks:
            while self._has_enough_open():
                yield from self._wait(ENOUGH_OPEN)
            block = Block(len(tokens))
            self._open.append(block)
            for length in tokens:
                while self._admission.waiting >= AHEAD:
                    yield from self._wait(ASKING)
                self._env.process(self._extract(block, length))
                yield self._env.timeout(0)  # it queues up first
        while self._open:
            yield from self._wait(NOTHING_LEFT)

    def _has_enough_open(self) -> bool:
        waiting = sum(block.waiting for block in self._open)
        in_flight = self._scenario.workers.max_in_flight * len(self.lanes)
        return len(self._open) >= open_cap(waiting, in_flight)

    def _wait(self, at: str) -> Steps:
        self._dispatch_at = at
        self._news = self._env.event()
        yield self._news
        self._dispatch_at = ASKING

    def _tell(self) -> None:
        self._admission.look()
        if not self._news.triggered:
            self._news.succeed()

    def _relieve(self, lane: Lane, missing_bytes: int) -> None:
        """Give back dumps that are appended and not committed, oldest first."""
        for block in self._open:
            for held in [one for one in block.held if one[0] is lane]:
                if missing_bytes <= 0:
                    return
                block.held.remove(held)
                lane.used_bytes -= held[1]
                missing_bytes -= held[1]
                self.early_samples += 1

    # --- one sample ---------------------------------------------------------------------------

    def _extract(self, block: Block, tokens: int) -> Steps:
        servers, size = self._scenario.servers, dump_bytes(tokens, self._scenario.row_bytes)
        lane: Lane = yield self._admission.place(size)
        self._charge(size)
        yield self.loop.serve(self._scenario.workers.request_seconds or 0)
        yield lane.prefill.serve(
            servers.request_seconds + tokens / servers.prefill_tokens_per_second
        )
        yield lane.hand_over.serve(size / 1e9 / (servers.hand_over_gb_per_second or 1e9))
        lane.bound -= 1
        self._tell()
        self.landed_bytes += size
        self.peak_landed_bytes = max(self.peak_landed_bytes, self.landed_bytes)
        yield self._memory.get(size)
        yield from self.sink.check(size)
        self.sink.append(Item(block, lane, tokens, size))

    def _charge(self, size: int) -> None:
        self.unwritten_bytes += size
        self.peak_unwritten_bytes = max(self.peak_unwritten_bytes, self.unwritten_bytes)
        self.peak_spool_bytes = max(self.peak_spool_bytes, self.spool_bytes)
        self._tell()  # the next sample may be brought

    def _appended(self, item: Item) -> None:
        self._memory.put(item.size_bytes)
        self.unwritten_bytes -= item.size_bytes
        self.landed_bytes -= item.size_bytes
        block = item.block
        block.held.append((item.lane, item.size_bytes))
        block.waiting -= 1
        self._tell()
        if not block.waiting:
            self._env.process(self._commit(block))

    def _commit(self, block: Block) -> Steps:
        tokens = yield from self.sink.commit(block)
        self.tokens_committed += tokens
        for lane, size in block.held:
            lane.used_bytes -= size
        self._open.remove(block)
        self._tell()

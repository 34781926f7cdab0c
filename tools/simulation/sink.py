"""What lies behind a dump: checks, encoders, the writing thread and the committing one.

As `extraction/block_sink.py` and `hsstore/shard/writer.py` do it: samples are encoded in the order in which
they come, the next piece while the last is written; a full window is sent to the disk, and the window
before it is waited for; what a commit finds unwritten, it writes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import simpy

from hsstore.shard.writer import WINDOW_BYTES
from hsstore.writer import LOOKAHEAD_CHUNKS
from tools.simulation.queues import Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tools.simulation.admission import Lane
    from tools.simulation.queues import Steps
    from tools.simulation.scenario import Scenario
    from tools.simulation.worker import Block

SMALL_OBJECTS = 3
"""Of a commit, one after the other: digest, failed, complete."""


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One checked dump."""

    block: Block
    lane: Lane
    tokens: int
    size_bytes: int


@dataclass(slots=True)
class _Shard:
    """Of one open block: what is encoded."""

    tokens: int = 0
    unsent_bytes: float = 0.0
    """On a disk, of the window that is not full; else all that is staged."""
    window: simpy.Event | None = None
    """The last one that was sent."""


@dataclass(slots=True)
class _Piece:
    item: Item
    stored_bytes: float
    last: bool


@dataclass(slots=True)
class Sink:
    """Checkers, encoders, writer and committer of one worker.

    Parameters
    ----------
    output : Shared
        Bytes a second, shared by the workers.
    appended : callable
        Called with each item that is in its shard.
    """

    env: simpy.Environment
    scenario: Scenario
    output: Shared
    appended: Callable[[Item], None]
    cores: Shared = field(init=False)
    network: Shared | None = field(init=False)
    committers: simpy.Resource = field(init=False)
    bytes_staged: float = 0.0
    peak_staged_bytes: float = 0.0
    commits: int = 0
    commit_seconds: float = 0.0
    """For how long the committing threads were at it."""
    _checkers: simpy.Resource = field(init=False)
    _items: simpy.Store = field(init=False)
    _encoded: simpy.Store = field(init=False)
    _put_done: simpy.Event = field(init=False)
    _shards: dict[Block, _Shard] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cores, output = self.scenario.workers.cores, self.scenario.output
        self.cores = Shared(self.env, cores)
        network = output.gb_per_second_per_worker
        self.network = Shared(self.env, network * 1e9) if network else None
        self.committers = simpy.Resource(self.env, output.uploads_at_once if self._puts else 1)
        self._checkers = simpy.Resource(self.env, -(-cores // 4))
        self._items = simpy.Store(self.env)
        self._encoded = simpy.Store(self.env, capacity=1)
        self._put_done = self.env.event()
        self.env.process(self._encode())
        self.env.process(self._write())

    @property
    def _puts(self) -> bool:
        return self.scenario.output.kind == "object"

    def check(self, size_bytes: int) -> Steps:
        """Read a dump once, with one thread."""
        rate = self.scenario.codec.check_gb_per_second_per_core or 1e9
        with self._checkers.request() as checker:
            yield checker
            yield self.cores.work(size_bytes / 1e9 / rate, most=1)

    def append(self, item: Item) -> None:
        """Queue a checked dump."""
        self._items.put(item)

    def commit(self, block: Block) -> Generator[simpy.Event, Any, int]:
        """Make a block durable; returns its tokens."""
        with self.committers.request() as committer:
            yield committer
            began, shard = self.env.now, self._shards.pop(block)
            yield from self._put(shard) if self._puts else self._sync(shard)
            self.commit_seconds += self.env.now - began
            self.commits += 1
        return shard.tokens

    def _encode(self) -> Steps:
        codec = self.scenario.codec
        window = math.inf if self._puts else WINDOW_BYTES * (codec.ratio or 1)
        while True:
            item: Item = yield self._items.get()
            left = float(item.tokens * self.scenario.row_bytes)
            while left > 0:
                raw = min(left, window)
                left -= raw
                seconds = raw / 1e9 / (codec.encode_gb_per_second_per_core or 1e9)
                yield self.cores.work(seconds, most=LOOKAHEAD_CHUNKS + 1)
                yield self._encoded.put(_Piece(item, raw / (codec.ratio or 1), left <= 0))

    def _write(self) -> Steps:
        while True:
            piece: _Piece = yield self._encoded.get()
            shard = self._shards.setdefault(piece.item.block, _Shard())
            shard.unsent_bytes += piece.stored_bytes
            yield from self._stage(piece) if self._puts else self._send_windows(shard)
            if piece.last:
                shard.tokens += piece.item.tokens
                self.appended(piece.item)

    def _send_windows(self, shard: _Shard) -> Steps:
        while shard.unsent_bytes >= WINDOW_BYTES:
            earlier, shard.window = shard.window, self._transfer(WINDOW_BYTES)
            shard.unsent_bytes -= WINDOW_BYTES
            if earlier is not None:
                yield earlier

    def _stage(self, piece: _Piece) -> Steps:
        """Keep encoded bytes until they are put; while there are too many, wait for a commit."""
        while self.bytes_staged > self.scenario.output.staging_gb * 1e9 and self.committers.count:
            self._put_done = self.env.event()
            yield self._put_done
        self.bytes_staged += piece.stored_bytes
        self.peak_staged_bytes = max(self.peak_staged_bytes, self.bytes_staged)

    def _sync(self, shard: _Shard) -> Steps:
        if shard.window is not None:
            yield shard.window
        yield self._transfer(shard.unsent_bytes)
        yield from self.output.wait_until_moving()
        yield self.env.timeout(self.scenario.output.commit_seconds or 0)

    def _put(self, shard: _Shard) -> Steps:
        seconds = self.scenario.output.put_seconds
        yield self.env.timeout(seconds)
        yield self._transfer(shard.unsent_bytes)
        for _ in range(SMALL_OBJECTS):
            yield from self.output.wait_until_moving()
            yield self.env.timeout(seconds)
        self.bytes_staged -= shard.unsent_bytes
        if not self._put_done.triggered:
            self._put_done.succeed()

    def _transfer(self, nbytes: float) -> simpy.Event:
        taken = self.output.work(nbytes)
        return taken if self.network is None else taken & self.network.work(nbytes)

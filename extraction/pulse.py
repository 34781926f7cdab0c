"""Is a run alive, and how fast: its last progress, and its rates."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from extraction.spool import SpoolError, SpoolView
from extraction.stages import unix_seconds
from hsstore.activity import ticks

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from extraction.spool import Heartbeat

CPU_SECONDS = 0.5
"""Computed since the last progress, where computing is progress: while data is read."""
MINUTE_SECONDS, QUARTER_SECONDS = 60.0, 900.0
SAMPLE_SECONDS = 1.0


class Pulse:
    """When something was last done, by whatever was done since the last look."""

    def __init__(self, *spools: Path) -> None:
        self.progress_count = 0
        """Changes with every progress."""
        self.spools = spools
        """Where servers beat."""
        self._progress_at = time.monotonic()
        self._heartbeat_at: float | None = None
        self._heartbeats: dict[Path, Heartbeat | None] = {}
        self._seen: Hashable = None
        self._computed_seconds = _computed_elsewhere_seconds()

    def look(
        self, counters: Hashable, *, computing_counts: bool, beating_counts: bool = True
    ) -> None:
        """Look whether something has moved.

        Parameters
        ----------
        counters : hashable
            Changes when bytes were moved or committed.
        computing_counts : bool
            Whether time on the processor is progress too: no counter tells that data is hashed.
        beating_counts : bool
            Whether a server that computes is progress: not where it answers all that it has no room.
        """
        now = time.monotonic()
        if self._any_beats():
            self._heartbeat_at = now
            if beating_counts:
                self._note_progress(now)
        seen = (counters, ticks())
        computed = _computed_elsewhere_seconds() - self._computed_seconds
        if seen != self._seen or (computing_counts and computed > CPU_SECONDS):
            self._seen = seen
            self._computed_seconds = _computed_elsewhere_seconds()
            self._note_progress(now)

    @property
    def progress_seconds(self) -> float:
        """Unix time of the last progress."""
        return unix_seconds(self._progress_at)

    @property
    def heartbeat_seconds(self) -> float:
        """Unix time when a server's heartbeat last advanced; 0 before that."""
        return 0.0 if self._heartbeat_at is None else unix_seconds(self._heartbeat_at)

    def _note_progress(self, now: float) -> None:
        self._progress_at = now
        self.progress_count += 1

    def _any_beats(self) -> bool:
        beats = [self._beats(spool) for spool in self.spools]  # of all: each look is remembered
        return any(beats)

    def _beats(self, spool: Path) -> bool:
        try:
            beat = SpoolView(spool).heartbeat()
        except (OSError, SpoolError):  # it is not there, or another user's: others say so
            return False
        before, self._heartbeats[spool] = self._heartbeats.get(spool), beat
        return beat is not None and beat != before


def _computed_elsewhere_seconds() -> float:
    """Return the processor time of all other threads: looking and publishing is no progress."""
    return time.process_time() - time.thread_time()


class RateMeter:
    """A counter's growth per second over the last minute, and the last 15."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, count: int) -> None:
        """Take note of the counter's value now."""
        now = time.monotonic()
        if self._samples and now - self._samples[-1][0] < SAMPLE_SECONDS:
            return
        self._samples.append((now, count))
        while now - self._samples[0][0] > QUARTER_SECONDS + SAMPLE_SECONDS:
            self._samples.popleft()

    def per_second(self, window_seconds: float) -> float:
        """Return the mean rate over a window, or since the first value where that is less."""
        if len(self._samples) < 2:
            return 0.0
        last_at, last = self._samples[-1]
        first_at, first = next(one for one in self._samples if last_at - one[0] <= window_seconds)
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0

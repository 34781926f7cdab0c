"""When has a run stalled: by progress, not by the clock.

Time counts only while the supervisor looks. It was stopped, the machine slept or a clock jumped:
none of that is a stall.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from extraction.status import RunStatus

LONGEST_STEP_SECONDS = 1.0
"""Of the time between two looks, no more counts."""


class _Still:
    """For how long a value has been the same."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._value: Hashable = None

    def look(self, value: Hashable, step_seconds: float) -> None:
        if value is None or value != self._value:
            self._value, self.seconds = value, 0.0
        else:
            self.seconds += step_seconds


class StallClock:
    """Measures how long a run has made no progress.

    Progress is what the worker saw: bytes moved or committed, or a heartbeat that advanced. Beside
    it, one file operation that does not return is a stall though the rest goes on: a server may
    fill a large spool for hours while the disk stands still.
    """

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._progress = _Still()
        self._operation = _Still()

    def look(self, status: RunStatus | None) -> float:
        """Look at a state; return the seconds without progress."""
        now = time.monotonic()
        step = min(now - self._looked_at, LONGEST_STEP_SECONDS)
        self._looked_at = now
        self._progress.look(_progress(status), step)
        self._operation.look(_operation(status), step)
        return max(self._progress.seconds, self._operation.seconds)


def _progress(status: RunStatus | None) -> Hashable:
    if status is None:
        return "no state"
    if not status.run:  # the worker is being loaded: slow where others compute, not stalled
        return _computes(status.worker_pid)
    return status.phase, status.progress_count


def _computes(pid: int) -> Hashable:
    """Return what changes while a process computes, or would if there were a free processor."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "gone"
    try:
        fields = os.read(descriptor, 4096).rpartition(b")")[2].split()
        ready = time.monotonic() if fields[0] == b"R" else None
        return ready, fields[11], fields[12]  # utime, stime: fields 14 and 15 of proc(5)
    except OSError:
        return "gone"
    finally:
        os.close(descriptor)


def _operation(status: RunStatus | None) -> Hashable:
    return status.oldest_operation or None if status else None

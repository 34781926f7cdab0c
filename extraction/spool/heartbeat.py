"""The heartbeat: a small mapped file that tells slow from stalled.

Layout: seven unsigned 64-bit integers in the machine's byte order, a magic number and the fields of
`Heartbeat`. Each is stored whole, so a reader may see a mixture of two beats, never a torn number.
A server that computes in several processes has such a file of each; readers see their sum.
Beats come from the threads that do the work, never from a timer; an engine that can tell
progress within a forward beats there too, so a beat with equal counters is progress all the same.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MAGIC: Final = int.from_bytes(b"HSBEAT\0\1", "big")
"""Its last byte is the version."""
_RECORD: Final = struct.Struct("@7Q")  # native: whole 8-byte stores


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A server's progress. Counters never go back while the server lives."""

    forwards: int
    """Forwards of the model that ended."""
    rows: int
    """Rows written into dumps."""
    queue_depth: int
    """Captures waiting to be written."""
    free_bytes: int
    """Free in the spool's file system."""
    monotonic_ns: int
    """Time of the beat, `CLOCK_MONOTONIC` of the server's machine."""
    wall_ns: int
    """Time of the beat, since 1970."""


class HeartbeatWriter:
    """The server's side. The file is complete from the moment it has its name."""

    def __init__(self, descriptor: int) -> None:
        os.posix_fallocate(descriptor, 0, _RECORD.size)  # an error here, not a SIGBUS later
        self._map = mmap.mmap(descriptor, _RECORD.size)
        os.close(descriptor)

    def beat(self, *, forwards: int, rows: int, queue_depth: int, free_bytes: int) -> None:
        """Publish counters and the time."""
        beat = Heartbeat(
            forwards, rows, queue_depth, free_bytes, time.monotonic_ns(), time.time_ns()
        )
        _RECORD.pack_into(self._map, 0, _MAGIC, *astuple(beat))

    def close(self) -> None:
        """Drop the mapping."""
        self._map.close()


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Read the latest beat; None where no server beats."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _RECORD.size:
        return None
    magic, *values = _RECORD.unpack(content)
    return Heartbeat(*values) if magic == _MAGIC else None


def sum_heartbeats(beats: Sequence[Heartbeat]) -> Heartbeat:
    """Add up the counters of a server's processes: any of them that advances is progress."""
    return Heartbeat(
        forwards=sum(beat.forwards for beat in beats),
        rows=sum(beat.rows for beat in beats),
        queue_depth=sum(beat.queue_depth for beat in beats),
        free_bytes=min(beat.free_bytes for beat in beats),
        monotonic_ns=max(beat.monotonic_ns for beat in beats),
        wall_ns=max(beat.wall_ns for beat in beats),
    )

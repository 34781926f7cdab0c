"""What this process is doing on the disk or in an object store right now, so that a hang can name its file.

Every blocking operation on a file registers itself here, in plain shared memory of the process:
another thread sees the operation, its file and since when, while the thread itself hangs.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.location import Location

Kind = Literal["open", "read", "write", "fsync", "rename", "unlink"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that has begun and not ended."""

    kind: Kind
    path: str
    began_seconds: float
    """`time.monotonic` when it began: clocks that jump change no age."""
    thread: int
    """The kernel's id of the thread."""
    serial: int
    """Of this very operation, > 0."""


_serials = itertools.count(1)
_current: dict[int, Operation] = {}
_unnoticed: set[int] = set()
_ticks = itertools.count(1)
_ticked = 0


@contextmanager
def operation(kind: Kind, path: Location | str) -> Iterator[None]:
    """Show what the thread is doing, with a file or a URL, while it does it; a success counts as progress."""
    thread = threading.get_native_id()
    if thread in _unnoticed:
        yield
        return
    outer = _current.get(thread)
    _current[thread] = Operation(kind, str(path), time.monotonic(), thread, next(_serials))
    try:
        yield
        tick()
    finally:
        if outer is None:
            _current.pop(thread, None)
        else:
            _current[thread] = outer


@contextmanager
def unnoticed() -> Iterator[None]:
    """Show nothing of what this thread does meanwhile, and count it for nothing: a run without progress does it too."""
    thread = threading.get_native_id()
    _unnoticed.add(thread)
    try:
        yield
    finally:
        _unnoticed.discard(thread)


def tick() -> None:
    """Count one more piece of work that has been done."""
    global _ticked  # noqa: PLW0603  # one number a process; a lost update is progress all the same
    _ticked = next(_ticks)


def ticks() -> int:
    """Return a number that changes whenever something was done."""
    return _ticked


def operations() -> list[Operation]:
    """Return what is going on, the oldest first."""
    return sorted(_current.values(), key=lambda one: one.serial)

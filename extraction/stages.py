"""Where every item of a run is, and since when: the stage table."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from extraction.status import DETAIL_CHARACTERS, StageState
from hsstore.activity import operations

if TYPE_CHECKING:
    from collections.abc import Iterator

STAGES = (
    "admit",
    "queue",
    "request",
    "answered",
    "memory",
    "check",
    "write",
    "commit",
    "give-back",
    "retry",
)
"""In the order of a sample's way; `StageState` says what they are."""


class StageTable:
    """Items by stage. One thread changes it; anybody may look."""

    def __init__(self) -> None:
        self._since: defaultdict[str, dict[str, float]] = defaultdict(dict)

    def enter(self, stage: str, item: object) -> None:
        """Note that an item is in a stage from now on."""
        self._since[stage][str(item)] = time.monotonic()

    def leave(self, stage: str, item: object) -> None:
        """Note that an item has left a stage, if it was there."""
        self._since[stage].pop(str(item), None)

    @contextmanager
    def at(self, stage: str, item: object) -> Iterator[None]:
        """Hold an item in a stage."""
        self.enter(stage, item)
        try:
            yield
        finally:
            self.leave(stage, item)

    def items(self, stage: str) -> list[str]:
        """Return what is in a stage, the oldest first."""
        return list(self._since[stage])

    def states(self) -> tuple[StageState, ...]:
        """Describe every stage that has items, then what the disk threads are in."""
        stages = [self._state(name) for name in STAGES if self._since[name]]
        return (*stages, *disk_states())

    def _state(self, name: str) -> StageState:
        items = self._since[name]
        oldest = next(iter(items))  # a dict keeps the order of entry
        return StageState(
            name=name,
            items=len(items),
            oldest_since_seconds=unix_seconds(items[oldest]),
            detail=oldest[:DETAIL_CHARACTERS],
        )


def unix_seconds(monotonic_seconds: float) -> float:
    """Translate a time of `time.monotonic`; by the clock of now, which may have jumped since."""
    return time.time() - (time.monotonic() - monotonic_seconds)


def oldest_quick_operation() -> int:
    """Return the serial number of the oldest file operation that should be quick; 0: none.

    An fsync takes as long as the data before it.
    """
    return next((one.serial for one in operations() if one.kind != "fsync"), 0)


def disk_states() -> tuple[StageState, ...]:
    """Describe the file operations that this process is in, the oldest first."""
    return tuple(
        StageState(
            name=f"disk:{one.kind}",
            items=1,
            oldest_since_seconds=unix_seconds(one.began_seconds),
            detail=one.path[-DETAIL_CHARACTERS:],
        )
        for one in operations()[:16]
    )

"""Serve batches of a store while it is being extracted, as the bits of their samples are set."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hsstore.claims import lives
from hsstore.loaders.selection import completeness

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hsstore.loaders.order import Share, Tail
    from hsstore.loaders.selection import Bools
    from hsstore.store import Store

POLL_SECONDS = 1.0


class RunWatch:
    """Tells whether anybody may still be extracting into a store.

    Signs of life are the lock that a run on this machine holds, and any change of a file in `STORE.runs`:
    a run, wherever it is, writes its status there every few seconds.

    Parameters
    ----------
    patience_seconds : float
        Without a sign of life for so long, no run is alive.
    """

    def __init__(self, store: Store, patience_seconds: float) -> None:
        self._directory = store.runs_path
        self._patience_seconds = patience_seconds
        self._seen: object = None
        self._alive_at = time.monotonic()

    def is_over(self) -> bool:
        """Look for signs of life."""
        seen = self._files()
        if seen != self._seen or self._is_locked():
            self.tell_alive()
        self._seen = seen
        return time.monotonic() - self._alive_at > self._patience_seconds

    def tell_alive(self) -> None:
        """Take note of any other sign of life."""
        self._alive_at = time.monotonic()

    def _files(self) -> set[tuple[str, int]]:
        found = set()
        for path in [*self._directory.glob("*"), *self._directory.glob("claims/*")]:
            with suppress(FileNotFoundError):
                found.add((path.name, path.stat().st_mtime_ns))
        return found

    def _is_locked(self) -> bool:
        claims = self._directory / "claims"
        return any(lives(claims, path.stem) for path in claims.glob("*.lock"))


def follow(
    store: Store, batches: Sequence[Sequence[int]], share: Share, tail: Tail, watch: RunWatch
) -> Iterator[tuple[int, list[int]]]:
    """Yield the batches of a worker as they become complete: their numbers, and their samples.

    A batch is due when each of its samples is complete or has failed; what failed is left out. At the end
    of the run come batches of which only some samples are complete. Then ranks that had fewer batches
    than others repeat some, unless `tail` is `uneven`.
    """
    step = share.ranks * share.workers
    waiting = list(range(share.rank + share.worker * share.ranks, len(batches), step))
    followed = np.concatenate(batches)
    known = 0
    while True:
        over = watch.is_over()  # before the bitmap is read: it then shows all that was committed
        complete, failed = completeness(store)
        settled = complete | failed
        if (count := int(settled.sum())) != known:
            known = count
            watch.tell_alive()
        due = [number for number in waiting if over or settled[batches[number]].all()]
        for number in due:
            if samples := _complete(batches[number], complete):
                yield number, samples
        waiting = sorted(set(waiting).difference(due))
        if over or settled[followed].all():
            break
        time.sleep(POLL_SECONDS)
    if tail == "pad" and share.worker == 0:
        yield from _make_up(batches, share, complete)


def _complete(samples: Sequence[int], complete: Bools) -> list[int]:
    return [sample for sample in samples if complete[sample]]


def _make_up(
    batches: Sequence[Sequence[int]], share: Share, complete: Bools
) -> Iterator[tuple[int, list[int]]]:
    """Repeat batches until this rank has had as many as the one with the most."""
    served = np.flatnonzero([complete[samples].any() for samples in batches]).tolist()
    counts = np.bincount(np.array(served, np.int64) % share.ranks, minlength=share.ranks)
    for k in range(int(counts.max() - counts[share.rank])):
        number = served[(share.rank + k) % len(served)]
        yield number, _complete(batches[number], complete)

"""The work of one of several workers on a store: spans claimed as they come, then those of others.

::

    own spans, in order -> unclaimed ones of others, from the far end -> wait for what others hold
                                                                      -> look again
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from extraction.block_order import by_block, span_order
from extraction.peers import LOOKS_AT_ONCE, Peers
from extraction.work import Work
from hsstore.claims import Claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from extraction.options import ExtractOptions
    from hsstore.store import Store

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 3.0
LOOK_EVERYWHERE_SECONDS = 60.0


def open_claims(
    store: Store, run: str, options: ExtractOptions, say: Callable[[], bytes]
) -> Claims:
    """Return the claims of a run, which has none yet; `say` returns its status."""
    return Claims(store, run, take_over=options.take_over, worker=options.worker_text, say=say)


def open_work(
    store: Store, claims: Claims, options: ExtractOptions, report: Callable[..., None]
) -> Work:
    """Return all that is pending, or a worker's part of it."""
    if options.worker is None:
        return Work(store, claims, options)
    return SharedWork(store, claims, options, report)


class SharedWork(Work):
    """What is pending and nobody else has, span by span.

    A span is given back when its blocks are closed. Who dies leaves claims that the others inherit.

    Parameters
    ----------
    report : callable
        Takes fields of `RunStatus` that changed.
    """

    def __init__(
        self, store: Store, claims: Claims, options: ExtractOptions, report: Callable[..., None]
    ) -> None:
        super().__init__(store, claims, options)
        self._worker, self._workers = options.worker or (0, 1)
        self._report = report
        self._phase = ""
        self._peers = Peers(claims, options.stall_abort_seconds)
        self._preferred: set[int] = set()
        self._elsewhere: dict[int, npt.NDArray[np.int64]] = {}
        """Pending samples by span, where the span is not ours, as it was at the last look."""
        self._looked_everywhere_at = -math.inf
        self._untried: list[int] = []
        """Of these spans: those that were not tried since."""
        self._queue: deque[tuple[int, list[int]]] = deque()
        self._open: dict[int, int] = {}
        """Spans of ours: how many of their blocks are not closed."""
        self._all_closed = asyncio.Event()

    @override
    def prepare(self) -> None:
        """Be this worker, and make failed samples of its own spans pending if asked.

        Raises
        ------
        RefusedError
            Somebody else is, or a run that is no worker writes the store.
        """
        self._claims.take_place()
        if self._retry_failed:
            self._reset_failed()

    def _reset_failed(self) -> None:
        """Make failed samples pending, once: what fails again must not go round among the workers."""
        failed = np.flatnonzero(self._store.completion().failed)
        spans = failed // self._span_samples
        for span in np.unique(spans[spans % self._workers == self._worker]).tolist():
            if self._claims.try_to_take(span):
                self._store.reset_failed(failed[spans == span])
                self._claims.give(span)
            else:
                log.warning("failed samples of span %d stay so: another run has claimed it", span)

    @override
    def prefer(self, samples: Iterable[int]) -> None:
        self._preferred |= {sample // self._span_samples for sample in samples}

    @override
    async def next(self) -> tuple[int, list[int]] | None:
        while not self._queue:
            claimed = await asyncio.to_thread(self._claim)
            if claimed is not None:
                self._begin(*claimed)
            elif self._open:
                # To look again would count as progress, and hide that our own server stands still.
                await self._all_closed.wait()
            elif not self._elsewhere:
                await asyncio.to_thread(self._claims.bury)
                return None
            else:
                await self._wait()
        return self._queue.popleft()

    @override
    async def close(self, block: int) -> None:
        span = self._store.layout.block(block).span
        self._open[span] -= 1
        if not self._open[span]:
            await asyncio.to_thread(self._claims.give, span)
            del self._open[span]
            if not self._open:
                self._all_closed.set()

    def _begin(self, span: int, samples: npt.NDArray[np.int64]) -> None:
        self._queue.extend(by_block(self._store.layout, samples))
        self._open[span] = len(self._queue)
        self._all_closed.clear()
        self.waiting = ""
        self._tell("extracting")

    async def _wait(self) -> None:
        self.waiting = await asyncio.to_thread(self._peers.look, self._elsewhere)
        self._tell("waiting for other workers")
        await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def _tell(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._report(phase=phase)

    # --- in a thread --------------------------------------------------------------------------

    def _claim(self) -> tuple[int, npt.NDArray[np.int64]] | None:
        """Claim the next span with something pending, and return what; None where others have all."""
        fresh = False
        while True:
            while self._untried:
                # Dumps of a server that has joined since the list was made come first, too.
                span = next(
                    (one for one in self._untried if one in self._preferred), self._untried[0]
                )
                self._untried.remove(span)
                # First a look, if it was not just now: others are kept out of a span while it is ours.
                if (fresh or len(self._pending(span))) and self._claims.try_to_take(span):
                    samples = self._pending(span)  # again, now that nobody else changes it
                    self._elsewhere.pop(span, None)
                    if len(samples):
                        return span, samples
                    self._claims.give(span)
            if fresh:
                return None
            self._look()
            fresh = True

    def _look(self) -> None:
        """See what is pending, first where it was at the last look; now and then, and at the end, everywhere.

        Others may take back what they had done, or retry what had failed.
        """
        now = time.monotonic()
        due = now - self._looked_everywhere_at >= LOOK_EVERYWHERE_SECONDS
        self._elsewhere = {} if due else self._pending_in(self._elsewhere)
        if not self._elsewhere:
            self._elsewhere = self._pending_anywhere()
            self._looked_everywhere_at = now
        self._untried = span_order(
            self._elsewhere, self._worker, self._workers, first=self._preferred
        )

    def _pending_anywhere(self) -> dict[int, npt.NDArray[np.int64]]:
        """Look at all spans together: an object store answers many requests at once."""
        pending = np.flatnonzero(self._store.completion().pending)
        spans = pending // self._span_samples
        parts = np.split(pending, np.flatnonzero(np.diff(spans)) + 1)
        by_span = {int(part[0]) // self._span_samples: part for part in parts if len(part)}
        return {span: part for span, part in by_span.items() if span not in self._open}

    def _pending_in(self, spans: Iterable[int]) -> dict[int, npt.NDArray[np.int64]]:
        wanted = [span for span in spans if span not in self._open]
        with ThreadPoolExecutor(LOOKS_AT_ONCE) as threads:  # an object store takes long to answer
            found = zip(wanted, threads.map(self._pending, wanted), strict=True)
            return {span: samples for span, samples in found if len(samples)}

    def _pending(self, span: int) -> npt.NDArray[np.int64]:
        where = self._store.layout.span_slice(span)
        pending = self._store.completion(where).pending
        samples: npt.NDArray[np.int64] = np.flatnonzero(pending) + where.start
        return samples

"""Wait for dumps: one scan of the spool serves every request in flight."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from extraction.spool import SpoolError
from hsstore.errors import InterruptedRunError

if TYPE_CHECKING:
    from extraction.spool import CaptureFailure, Heartbeat, RequestId, SpoolClient

SCAN_SECONDS = 0.01


class SpoolWatch:
    """Turns files that appear in the spool into results of futures.

    A result is None when the dump is finished, or the server's `CaptureFailure`.
    """

    def __init__(self, spool: SpoolClient) -> None:
        self._spool = spool
        self._waiting: dict[RequestId, asyncio.Future[CaptureFailure | None]] = {}
        self._loop = asyncio.get_running_loop()
        self._heartbeat: Heartbeat | None = None
        self._advanced_at = self._looked_at = self._loop.time()
        self._wake = asyncio.Event()
        self._broken: Exception | None = None

    def expect(self, rid: RequestId) -> asyncio.Future[CaptureFailure | None]:
        """Return the future of a request's dump."""
        future = self._loop.create_future()
        if self._broken is not None:
            _fail(future, self._broken)
            return future
        self._waiting[rid] = future
        self._wake.set()
        return future

    def forget(self, rid: RequestId) -> None:
        """Stop waiting for a request, and drop whatever it has left in the spool."""
        self._waiting.pop(rid, None)
        self._spool.discard(rid)

    def queued(self) -> bool:
        """Tell whether captures wait to be written, as far as the server says."""
        beat = self._beat()
        return beat is None or beat.queue_depth > 0

    def beat_after(self, moment_seconds: float) -> bool:
        """Tell whether the server has beaten since a moment of the loop's clock.

        Both sides share the machine's monotonic clock, as they share its memory.
        """
        beat = self._beat()
        return beat is not None and beat.monotonic_ns > moment_seconds * 1e9

    def still_seconds(self) -> float:
        """Return for how long the server's heartbeat has not advanced."""
        self._beat()
        return self._loop.time() - self._advanced_at

    def _beat(self) -> Heartbeat | None:
        """Read the heartbeat, once for all who ask at about the same time."""
        now = self._loop.time()
        if now - self._looked_at >= SCAN_SECONDS or self._heartbeat is None:
            self._looked_at = now
            heartbeat = self._spool.heartbeat()
            if heartbeat != self._heartbeat:
                self._heartbeat = heartbeat
                self._advanced_at = now
        return self._heartbeat

    async def run(self) -> None:
        """Scan while somebody waits; runs until cancelled, or until the spool is gone."""
        try:
            while True:
                if not self._waiting:
                    self._wake.clear()
                    await self._wake.wait()
                self._scan()
                await asyncio.sleep(SCAN_SECONDS)
        except (OSError, SpoolError) as error:
            self._break(
                InterruptedRunError(
                    f"the spool cannot be read any more ({error}); restart the server, then run "
                    "again"
                )
            )
        except Exception as error:  # noqa: BLE001  # a bug: who waits would wait for ever
            self._break(error)

    def _break(self, error: Exception) -> None:
        """Tell everybody who waits, now or later, that nothing will come any more."""
        self._broken = error
        for future in self._waiting.values():
            if not future.done():
                _fail(future, self._broken)
        self._waiting.clear()

    def _scan(self) -> None:
        finished, errors = self._spool.settled(self._waiting)
        for rid in errors:
            self._settle(rid, self._spool.take_error(rid))
        for rid in finished:
            self._settle(rid, None)

    def _settle(self, rid: RequestId, result: CaptureFailure | None) -> None:
        future = self._waiting.pop(rid, None)
        if future is not None and not future.done():
            future.set_result(result)


def _fail(future: asyncio.Future[CaptureFailure | None], error: Exception) -> None:
    future.set_exception(error)
    future.exception()  # who waits may be cancelled: an unread exception must not be logged

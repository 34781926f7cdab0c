"""Ask one server for one sample's states: the request, its dump, and what can go wrong.

The answer over HTTP and the dump in the spool come in any order. Errors say what they mean for
the sample: only some of them cost it an attempt.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from extraction.server_link import RequestAbortedError, ServerAwayError
from extraction.server_wait import wait_for_server
from extraction.spool import ErrorReason

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from extraction.server_link import ServerLink
    from extraction.spool import CaptureFailure, Dump, RequestId, ServerInfo, SpoolClient
    from extraction.spool_watch import SpoolWatch

POLL_SECONDS = 1.0
ANSWER_SECONDS = 5.0
"""How long an answer may lag behind its dump before its connection is dropped."""

ABORT_SECONDS = 1.0
REASON_SECONDS = 0.5
"""How long the spool's own word about a failure may lag behind the answer."""
QUIET_SECONDS = 5.0
"""Where little is in flight, a request was not captured if its answer came so long ago and, for about
as long, the server has done nothing and has nothing to write."""
WRITTEN_SECONDS = 20.0
"""Nor was any other, if a server that goes on beating has had nothing to write for so long since its
answer. Longer: it must outlast one write on a busy machine."""

NO_FAULT = {ErrorReason.FULL, ErrorReason.OVERRUN}
"""Reasons that lie with the server's load, not with the sample."""

ABORTED = {ErrorReason.INCOMPLETE, ErrorReason.ENGINE}
"""What a capture may end with whose request was aborted."""


class ServerBusyError(Exception):
    """The server had no room for the capture: ask later, with fewer requests in flight."""

    def __init__(self, message: str, *, full: bool) -> None:
        super().__init__(message)
        self.full = full
        """Whether it is the spool that had no room, not the server's buffers."""


class DumpMissingError(Exception):
    """The server answered, or stands still, and no dump came."""


class CaptureFailedError(Exception):
    """The server gave the capture up for a reason that lies with this request."""


class Requester:
    """Requests to one server and their dumps.

    Parameters
    ----------
    check_server : callable
        Called with the server's description whenever it is back; raises `RefusedError` when it
        is not the server that this store belongs to.
    """

    def __init__(
        self,
        link: ServerLink,
        spool: SpoolClient,
        watch: SpoolWatch,
        *,
        timeout_seconds: float,
        server_wait_seconds: float,
        check_server: Callable[[ServerInfo], None],
    ) -> None:
        self._link = link
        self._spool = spool
        self._watch = watch
        self._timeout_seconds = timeout_seconds
        self._server_wait_seconds = server_wait_seconds
        self._check_server = check_server
        self._revival: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self._in_flight: set[RequestId] = set()
        self._lost: set[RequestId] = set()
        """Requests to a server that went away: should it only have stood still, it may go on."""
        self._instances: set[str] = set()
        self.on_answer: Callable[[RequestId], object] = str
        """Called with requests whose answer has come while their dump has not."""

    def knows(self, instance: str) -> bool:
        """Tell whether a start of the server was announced in this spool while we were here.

        A request may end up at another start than the one that it was sent to: what they capture
        is compared by the capture hash.
        """
        if instance not in self._instances:
            self._instance()
        return instance in self._instances

    async def fetch(
        self, rid: RequestId, input_ids: npt.NDArray[np.int32], *, prompt: bool = False
    ) -> Dump:
        """Send one request and open its dump; nothing is left in the spool after an error.

        Parameters
        ----------
        prompt : bool
            Nothing large of ours is in flight: a missing dump is told as soon as the server is idle.

        Raises
        ------
        ServerAwayError, RequestAbortedError, ServerBusyError
            Not the sample's fault.
        RequestRefusedError, DumpMissingError, CaptureFailedError, DumpError
            An attempt failed.
        """
        self._in_flight.add(rid)
        arrival = self._watch.expect(rid)
        patience = _Patience(self._watch, self._timeout_seconds, prompt=prompt)
        answer = asyncio.create_task(self._link.generate(str(rid), input_ids.tolist()))
        try:
            await self._wait(rid, arrival, answer, patience)
            dump = self._spool.open_dump(rid)
        except asyncio.CancelledError:  # `abort_all` tells the server
            self._watch.forget(rid)
            raise
        except Exception as error:
            self._watch.forget(rid)
            self._in_flight.discard(rid)
            if isinstance(error, DumpMissingError):  # the server may still be at it
                await self._link.abort(str(rid), ABORT_SECONDS)
            if isinstance(error, ServerAwayError) and not isinstance(error, RequestAbortedError):
                self._lost.add(rid)
            raise
        finally:
            self._let_answer_finish(answer)
        self._in_flight.discard(rid)
        return dump

    async def wait_until_up(self) -> None:
        """Wait until the server is there, and is the right one.

        Raises
        ------
        InterruptedRunError
            It did not come within `server_wait_seconds`.
        RefusedError
            It is another one now.
        """
        if self._link.up.is_set():
            return
        if self._revival is None or self._revival.done():
            self._revival = asyncio.create_task(self._revive())
        await asyncio.shield(self._revival)

    @property
    def in_flight(self) -> int:
        """Requests that were sent and whose dumps have not come."""
        return len(self._in_flight)

    def park(self, error: ServerAwayError) -> None:
        """Send nothing more until the server answers again; see `ServerLink.park`."""
        self._link.park(error)

    async def abort_all(self, timeout_seconds: float) -> None:
        """Tell the server that the requests of cancelled `fetch` calls are not wanted any more."""
        aborts = [self._link.abort(str(rid), timeout_seconds) for rid in self._in_flight]
        await asyncio.gather(*aborts)
        for rid in self._in_flight:
            self._spool.discard(rid)
        self._in_flight.clear()

    async def close(self) -> None:
        """Cancel what still runs."""
        tasks = [*self._answers, *([self._revival] if self._revival else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(
        self,
        rid: RequestId,
        arrival: asyncio.Future[CaptureFailure | None],
        answer: asyncio.Task[None],
        patience: _Patience,
    ) -> None:
        instance = self._instance()
        waiting: set[asyncio.Future[CaptureFailure | None] | asyncio.Task[None]] = {arrival, answer}
        while not arrival.done():
            done, _ = await asyncio.wait(
                waiting, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not done and self._is_gone(instance):
                raise ServerAwayError("the server that had this request is gone, and its dump too")
            if answer in waiting and answer.done():
                if not arrival.done() and answer.exception() is not None:
                    await asyncio.wait({arrival}, timeout=REASON_SECONDS)
                if not arrival.done():
                    answer.result()  # raises what the server said
                patience.answered()
                self.on_answer(rid)
                waiting.discard(answer)
            if not arrival.done():
                coming, cut_seconds = self._spool.is_coming(rid), self._spool.cut_seconds()
                patience.check(coming=coming, cut_seconds=cut_seconds)
        failure = arrival.result()
        if failure is not None:
            await _raise_for(failure, answer)

    def _is_gone(self, instance: str | None) -> bool:
        """Tell whether the server that a request was sent to holds its spool no more."""
        now = self._instance()
        return now is None or now != instance

    def _instance(self) -> str | None:
        info = self._spool.server()
        if info is None:
            return None
        self._instances.add(info.instance)
        return info.instance

    def _let_answer_finish(self, answer: asyncio.Task[None]) -> None:
        async def finish() -> None:
            try:
                await asyncio.wait({answer}, timeout=ANSWER_SECONDS)
            finally:
                answer.cancel()
            # The dump is here, or nobody wants it: what the server says now changes nothing.
            await asyncio.gather(answer, return_exceptions=True)

        task = asyncio.create_task(finish())
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _revive(self) -> None:
        began = asyncio.get_running_loop().time()
        async with self._link.patience(self._server_wait_seconds):
            await self._link.wait_until_healthy()
        # It answers. That it has not announced itself is another thing, and is said as that.
        left = began + self._server_wait_seconds - asyncio.get_running_loop().time()
        info = await wait_for_server(self._link, self._spool.directory.path, max(left, 0.0))
        self._instances.add(info.instance)
        self._check_server(info)
        await self._abort_lost()
        self._link.up.set()

    async def _abort_lost(self) -> None:
        """Tell a server that is back what nobody waits for any more, and remove what it has left."""
        lost = list(self._lost)
        await asyncio.gather(*(self._link.abort(str(rid), ABORT_SECONDS) for rid in lost))
        for rid in lost:
            self._spool.discard(rid)
        self._lost.clear()


class _Patience:
    """How long one request is worth waiting for."""

    def __init__(self, watch: SpoolWatch, timeout_seconds: float, *, prompt: bool) -> None:
        self._watch = watch
        self._timeout_seconds = timeout_seconds
        self._prompt = prompt
        self._loop = asyncio.get_running_loop()
        self._sent = self._queued = self._loop.time()
        self._answered: float | None = None

    def answered(self) -> None:
        """Take note that the answer over HTTP has come."""
        self._answered = self._queued = self._loop.time()

    def check(self, *, coming: bool, cut_seconds: float) -> None:
        """Raise when there is nothing to wait for any more.

        Parameters
        ----------
        coming : bool
            The dump may be finished, and on its way from another machine.
        cut_seconds : float
            For so long nothing can come from there.

        Raises
        ------
        DumpMissingError, ServerAwayError
        """
        now = self._loop.time()
        still_seconds = self._watch.still_seconds()
        if self._answered is None:
            if min(now - self._sent, still_seconds) > self._timeout_seconds:
                raise ServerAwayError(f"no answer and no heartbeat for {now - self._sent:.0f} s")
            return
        if cut_seconds > self._timeout_seconds:
            raise ServerAwayError(f"its relay has not answered for {cut_seconds:.0f} s")
        if coming:
            self._answered = self._queued = now
            return
        waited = now - self._answered
        if waited >= self._timeout_seconds or self._never_captured(waited, still_seconds):
            raise DumpMissingError(f"the server answered {waited:.0f} s ago, no dump came")

    def _never_captured(self, waited: float, still_seconds: float) -> bool:
        if self._watch.queued():
            self._queued = self._loop.time()
            return False
        # The heartbeat is looked at once in a while: what it has stood still is rather more.
        quiet = min(waited, still_seconds + 1.5 * POLL_SECONDS) >= QUIET_SECONDS
        return (self._prompt and quiet) or self._watch.beat_after(self._queued + WRITTEN_SECONDS)


async def _raise_for(failure: CaptureFailure, answer: asyncio.Task[None]) -> None:
    if failure.reason in ABORTED:  # the answer says whether it was
        await asyncio.wait({answer}, timeout=REASON_SECONDS)
        if answer.done() and isinstance(answer.exception(), RequestAbortedError):
            answer.result()
    message = f"{failure.reason}: {failure.detail}"
    if failure.reason in NO_FAULT:
        raise ServerBusyError(message, full=failure.reason == ErrorReason.FULL)
    raise CaptureFailedError(message)

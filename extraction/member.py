"""One server of a run as the run sees it: waited for, asked, parked, on its way out, or refused."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from extraction.canary import Canary
from extraction.status import SHOWN_CHARACTERS, ServerPhase, ServerState
from hsstore.spec import CanaryRecord, ServerRecord

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from extraction.addresses import ServerAddress
    from extraction.lane import Lane
    from extraction.requester import Requester
    from extraction.spool import ServerInfo

PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0
"""Before a server is asked again that is healthy and has brought nothing since the last time."""


class Member:
    """One server of the fleet, whether its lane is open or not."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.state: ServerPhase = "waiting"
        self.message = ""
        self.lane: Lane | None = None
        self.task: asyncio.Task[None] | None = None
        self.leaves = asyncio.Event()
        """Set for good: it is to be closed."""
        self.stirred = asyncio.Event()
        """Set when it was parked, or is to go."""
        self.joined = False
        """Samples were given to its lane."""
        self.lost = False
        """Its lane has to be opened anew."""
        self.away_since_seconds: float | None = asyncio.get_running_loop().time()
        """On the loop's clock; None while it is asked."""
        self.requester: Requester | None = None
        """Of a server that is there, until its lane is closed."""
        self._limit_bytes = math.inf
        self._vain = 0
        """Times in a row that it came back and brought nothing."""
        self._dumps_before = 0
        self._tokens_before = 0
        self._info: ServerInfo | None = None
        self._canary: Canary | CanaryRecord | None = None

    def greet(self, requester: Requester) -> None:
        """Take note that it is there, and has to prove itself."""
        self.requester = requester

    @property
    def proves_itself(self) -> bool:
        """Whether it is there, and is asked for no sample yet."""
        return self.requester is not None and not self.joined

    @property
    def limit_bytes(self) -> float:
        """The largest dump that its spool may hold; infinite before it is known."""
        return self.lane.budget.limit_bytes if self.lane else self._limit_bytes

    def enter(self, lane: Lane) -> None:
        """Have its lane open."""
        self.lane, self.joined, self.lost = lane, False, False
        self._dumps_before = 0
        self._info, self._canary = lane.info, lane.canary

    def leave(self, lane: Lane) -> None:
        """Have it closed."""
        self.lane, self.joined = None, False
        self._limit_bytes = lane.budget.limit_bytes
        self._tokens_before += lane.tokens_asked

    def park(self, why: str) -> None:
        """Take note that it went away."""
        self.state, self.message = "parked", why
        if self.away_since_seconds is None:
            self.away_since_seconds = asyncio.get_running_loop().time()

    def pause_seconds(self, lane: Lane) -> float:
        """Return how long to leave it alone, now that it is back; longer if it has brought nothing."""
        self._vain = 0 if lane.dumps > self._dumps_before else self._vain + 1
        self._dumps_before = lane.dumps
        return min(PAUSE_SECONDS * 2**self._vain, MAX_PAUSE_SECONDS) if self._vain else 0.0

    @property
    def tokens(self) -> int:
        """Tokens that were asked of it."""
        return self._tokens_before + (self.lane.tokens_asked if self.lane else 0)

    @property
    def canary(self) -> CanaryRecord | None:
        """What its canary has found; None before it was there."""
        return self._canary.record if isinstance(self._canary, Canary) else self._canary

    def record(self) -> ServerRecord:
        """Describe it for the run's record."""
        info = self._info
        return ServerRecord(
            url=self.address.url,
            spool=str(self.address.spool),
            instance=info.instance if info else None,
            engine_version=info.engine_version if info else None,
            flags=info.flags if info else {},
            tokens=self.tokens,
            canary=self.canary,
            message=self.message,
        )

    @property
    def counts(self) -> bool:
        """Whether the run may hope for it."""
        return self.state not in {"leaving", "dropped"}

    def show(self) -> ServerState:
        """Describe it for the status page."""
        lane, requester = self.lane, self.requester
        asked = requester.in_flight if requester else 0
        return ServerState(
            url=self.address.url,
            spool=str(self.address.spool),
            state=self.state,
            in_flight=lane.in_flight if lane else asked,
            in_flight_cap=lane.flight.cap if lane else 0,
            tokens=self.tokens,
            message=self.message[:SHOWN_CHARACTERS],
        )


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Do something unless an event comes first; tell whether it was done."""
    doing, waiting = asyncio.ensure_future(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
        return doing.done()
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)

"""The servers of a run: they come, go away, come back, are refused, are added and taken out.

Each has a task that opens its lane, probes it while it is parked, and closes it when it is to go and
nothing of ours is left in its spool.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from typing import TYPE_CHECKING, Self

from extraction.addresses import LOOK_SECONDS
from extraction.admission import Admission
from extraction.deviation import VERDICTS
from extraction.lane import Lane, Setting, open_lane, share_again
from extraction.member import MAX_PAUSE_SECONDS, PAUSE_SECONDS, Member, unless
from hsstore.errors import HsstoreError, InterruptedRunError, RefusedError
from hsstore.spec import CanaryRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from extraction.addresses import ServerAddress, Servers
    from extraction.server_link import ServerAwayError
    from hsstore.spec import ServerRecord

log = logging.getLogger(__name__)

NO_CANARY = CanaryRecord(verdict="off")


class Fleet:
    """All servers of a run. An async context manager: at its end nothing of ours is left with them.

    Parameters
    ----------
    servers : Servers
        Who they are; the file among them is read again while the run goes on.
    failed : dict
        Why some have failed before; those that were refused are not to be asked.

    Attributes
    ----------
    on_join, on_leave : callable
        Called with a lane before the first sample is given to it, and after the last one.
    on_ended : async callable
        Called with a lane that is to go, when all that it was asked for has come.
    """

    def __init__(
        self, setting: Setting, servers: Servers, failed: Mapping[ServerAddress, HsstoreError]
    ) -> None:
        self.admission = Admission(lambda: self.limit_bytes)
        self.members: list[Member] = []
        self._gone: list[Member] = []
        self.on_join: Callable[[Lane], None] = lambda _: None
        self.on_leave: Callable[[Lane], None] = lambda _: None
        self.on_ended: Callable[[Lane], Coroutine[Any, Any, None]]
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the error that ends the run; never a result."""
        self._setting = setting
        self._servers = servers
        self._failed = failed
        self._opened: asyncio.Future[Lane] = asyncio.get_running_loop().create_future()
        self._joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._recorded = asyncio.Event()
        self._last_error: HsstoreError = InterruptedRunError("no server is left")
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    async def __aenter__(self) -> Self:
        self._update(await asyncio.to_thread(self._servers.read))
        for member in self.members:
            error = self._failed.get(member.address)
            if isinstance(error, RefusedError):
                self._mark_dropped(member, error)
        if self._servers.file is not None:
            _ = self._start(self._follow_file())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- for the run --------------------------------------------------------------------------

    async def first(self) -> Lane:
        """Wait for the first lane that is open; no sample is given to it yet.

        Raises
        ------
        HsstoreError
            None comes.
        """
        either: set[asyncio.Future[Any]] = {self._opened, self.failure}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return self._opened.result() if self._opened.done() else self._raise_failure()

    async def begin(self) -> None:
        """Let the canaries be asked for, and wait until one lane may be used.

        Raises
        ------
        HsstoreError
            None may.
        """
        self._recorded.set()
        await asyncio.wait({self._joined, self.failure}, return_when=asyncio.FIRST_COMPLETED)
        if not self._joined.done():
            self._raise_failure()

    def records(self) -> tuple[ServerRecord, ...]:
        """Describe all servers for the run's record."""
        return tuple(member.record() for member in (*self.members, *self._gone))

    def lanes(self) -> list[Lane]:
        """Return all that are open."""
        return [member.lane for member in self.members if member.lane is not None]

    @property
    def limit_bytes(self) -> float:
        """The largest dump that a server may hold; infinite while that is not known.

        One that has been away for as long as the user will wait is not counted on.
        """
        hoped = [member for member in self.members if member.counts]
        there = [one for one in hoped if not self._waited_enough(one.away_since_seconds)]
        return max((one.limit_bytes for one in there), default=math.inf)

    def sharing_memory(self, lane: Lane) -> list[Lane]:
        """Return a lane, and all others that are open and whose spools take the same memory."""
        return [lane, *(one for one in self.lanes() if one.memory & lane.memory and one != lane)]

    @property
    def max_in_flight(self) -> int:
        """Requests at once that all servers together may be asked for."""
        return max(1, len(self.lanes())) * self._setting.options.max_in_flight

    @property
    def canary(self) -> CanaryRecord:
        """What the canaries found: the worst of all servers."""
        found = [one.canary for one in (*self.members, *self._gone) if one.canary is not None]
        return max(found, key=lambda one: VERDICTS.index(one.verdict), default=NO_CANARY)

    def is_replaced(self, lane: Lane) -> bool:
        """Whether this one is asked for nothing, and others are."""
        return lane not in (self.admission.lanes or [lane])

    @property
    def only_busy(self) -> str:
        """Why no dump comes although servers answer; empty while one brings some."""
        reasons = [lane.flight.only_busy for lane in self.admission.lanes]
        return reasons[0] if reasons and all(reasons) else ""

    def park(self, lane: Lane, error: ServerAwayError) -> None:
        """Ask this one for nothing more until it answers again; one that aborts requests does so."""
        lane.requester.park(error)
        member = self._member(lane)
        if member is None or lane.link.up.is_set() or member.state != "up":
            return
        member.park(str(error))
        self.admission.close(lane)
        member.stirred.set()
        if len(self.members) > 1:
            log.warning("server %s is parked: %s", lane.address.url, error)

    def lose(self, lane: Lane, error: RefusedError | InterruptedRunError) -> None:
        """Do without this one, if there are others; what it still holds is kept until its commit.

        Raises
        ------
        RefusedError, InterruptedRunError
            There is no other: the error itself.
        """
        member = self._member(lane)
        if member is None or not member.counts or member.lost:
            return
        if not self._has_others(member):
            raise error
        if isinstance(error, RefusedError):
            self._drop(member, error)
            return
        member.lost = True
        member.park(str(error))
        self._retire(member, lane)
        log.warning("server %s is parked: %s", lane.address.url, error)

    # --- members ------------------------------------------------------------------------------

    def _update(self, addresses: tuple[ServerAddress, ...]) -> None:
        """Add those that are new, and let go those that are there no more."""
        known = {member.address: member for member in self.members}
        names = {address.url for address in known}
        names |= {os.path.realpath(address.spool) for address in known}
        for address in addresses:
            # What is named in another way first has to be left by whoever has it.
            if names.isdisjoint((address.url, os.path.realpath(address.spool))):
                member = Member(address)
                self.members.append(member)
                member.task = self._start(self._live(member))
        for address, member in known.items():
            if address not in addresses:
                self._let_go(member)

    def _let_go(self, member: Member) -> None:
        if member.state == "dropped" and member.task is not None and member.task.done():
            self.members.remove(member)  # named again, it gets another chance
            self._gone.append(member)
        elif member.state != "leaving":
            log.info("server %s is asked for nothing more", member.address.url)
            member.state, member.message = "leaving", "taken out of the servers file"
            if not member.leaves.is_set():  # else its lane is being closed
                self._send_away(member)

    async def _follow_file(self) -> None:
        """Read the file again and again; end the run when nobody is named for too long."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._update(await asyncio.to_thread(self._servers.read))
            if self._over_due() and not any(member.counts for member in self.members):
                nobody = InterruptedRunError(f"no server is left: {self._servers.file} names none")
                dropped = any(member.state == "dropped" for member in self.members)
                self._fail(self._last_error if dropped else nobody)

    async def _live(self, member: Member) -> None:
        """Be the task of a member, until it is dropped or has left."""
        pause = PAUSE_SECONDS
        try:
            while not member.leaves.is_set():
                try:
                    await self._open_and_use(member)
                    pause = PAUSE_SECONDS
                except InterruptedRunError as error:
                    self._bear(member, error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MAX_PAUSE_SECONDS)
        except RefusedError as error:
            self._drop(member, error)
        finally:
            if member.state == "leaving" and not self._ending:
                log.info("server %s has left", member.address.url)
                self.members.remove(member)
                self._gone.append(member)

    async def _open_and_use(self, member: Member) -> None:
        peers = self._hoped_for()
        try:
            async with open_lane(self._setting, member.address, peers, member.greet) as lane:
                self._refuse_same_instance(lane)
                member.enter(lane)
                try:
                    if not self._opened.done():
                        self._opened.set_result(lane)
                    await self._recorded.wait()
                    await lane.refuse_wrong_states()
                    await self._use(member, lane)
                finally:
                    self.admission.close(lane)
                    if not self._ending:  # else it is shown as it was
                        member.leave(lane)
        finally:
            member.requester = None
            if not self._ending:
                share_again(self._setting, self._hoped_for())

    def _hoped_for(self) -> list[ServerAddress]:
        return [one.address for one in self.members if one.counts]

    def _refuse_same_instance(self, lane: Lane) -> None:
        for other in self.lanes():
            if other.info.instance == lane.info.instance:
                raise RefusedError(f"this is the same server as {other.address.url}")

    async def _use(self, member: Member, lane: Lane) -> None:
        """Have samples asked for, until the member is to go and holds nothing of ours."""
        member.joined = True
        self.on_join(lane)
        self._admit(member, lane)
        while not (member.leaves.is_set() or member.lost):
            await member.stirred.wait()
            member.stirred.clear()
            if member.state == "parked" and not member.lost:
                await self._revive(member, lane)
        while not lane.is_idle:
            if not (lane.bound or lane.checks):
                try:
                    await self.on_ended(lane)
                except HsstoreError as error:  # the store's, not this server's
                    self._fail(error)
                    return
            if not lane.is_idle:
                await self.admission.wait_for_change()

    async def _revive(self, member: Member, lane: Lane) -> None:
        """Probe until it is there again, or is to go."""
        while not (member.leaves.is_set() or member.lost):
            try:
                if not await unless(member.leaves, lane.requester.wait_until_up()):
                    return
                # One that is only sick gets no more than a try now and then.
                if self.admission.lanes:
                    await unless(member.leaves, asyncio.sleep(member.pause_seconds(lane)))
                if lane.link.up.is_set() and not member.lost:
                    self._admit(member, lane)
                    return
            except InterruptedRunError as error:
                self._bear(member, error)
            except RefusedError as error:
                self._drop(member, error)
                return

    def _admit(self, member: Member, lane: Lane) -> None:
        if not member.counts:
            return
        if len(self.members) > 1 or member.state == "parked":
            log.info("server %s is asked for samples", lane.address.url)
        member.state, member.message, member.away_since_seconds = "up", "", None
        self.admission.open(lane)
        if not self._joined.done():
            self._joined.set_result(None)

    def _retire(self, member: Member, lane: Lane) -> None:
        self.admission.close(lane)
        self.on_leave(lane)
        member.stirred.set()

    # --- who gives up -------------------------------------------------------------------------

    def _drop(self, member: Member, error: RefusedError) -> None:
        """Go on without a server that is the wrong one; where it is the only one, end the run."""
        if not self._has_others(member):
            self._fail(error)
        elif member.state != "leaving":
            log.warning("server %s is not used: %s", member.address.url, error)
            self._mark_dropped(member, error)

    def _mark_dropped(self, member: Member, error: RefusedError) -> None:
        member.state, member.message = "dropped", str(error)
        self._last_error = error
        self._send_away(member)

    def _send_away(self, member: Member) -> None:
        """Have its lane closed, as soon as nothing of ours is left in its spool."""
        member.leaves.set()
        self.admission.look()  # what had waited for it
        if member.lane is not None and member.joined:
            self._retire(member, member.lane)
        elif member.task is not None and member.task is not asyncio.current_task():
            member.task.cancel()

    def _bear(self, member: Member, error: InterruptedRunError) -> None:
        """Wait on, if others are there, or have not been waited for long enough."""
        self._last_error = error
        if self._over_due() or not (self._has_others(member) or len(self.members) > 1):
            self._fail(error)
            return
        member.message = str(error)
        log.info("server %s is still waited for: %s", member.address.url, error)
        self.admission.look()  # what fits its spool only may have waited for long enough

    def _has_others(self, member: Member) -> bool:
        others = any(one.counts for one in self.members if one is not member)
        return others or (self._servers.file is not None and self._joined.done())

    def _over_due(self) -> bool:
        """Whether no server could be asked for longer than the user will wait."""
        proving = any(member.proves_itself for member in self.members)
        return not proving and self._waited_enough(self.admission.nobody_since_seconds)

    def _waited_enough(self, since_seconds: float | None) -> bool:
        now, enough = asyncio.get_running_loop().time(), self._setting.options.server_wait_seconds
        return since_seconds is not None and now - since_seconds >= 0.9 * enough

    def _fail(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)
            self.failure.exception()  # nobody may be waiting for it any more

    def _raise_failure(self) -> Lane:
        self.failure.result()
        raise RuntimeError("a fleet fails with an error")

    def _member(self, lane: Lane) -> Member | None:
        return next((member for member in self.members if member.lane is lane), None)

    def _start(self, life: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(life)
        self._tasks.append(task)
        task.add_done_callback(self._look_at_the_end)
        return task

    def _look_at_the_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

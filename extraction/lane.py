"""A lane: all that belongs to one server during a run, and how it is opened.

::

    wait for the server -> same model -> hold its spool -> salvage -> handshake -> same golden states
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from extraction.budget import ByteBudget
from extraction.canary import MEMORY_SHARE, Canary, CanaryError, plan_canary
from extraction.flight import FlightCap
from extraction.handshake import (
    GOLDEN_ROWS,
    HANDSHAKE_ATTEMPTS,
    Handshake,
    model_of,
    refuse_other_golden,
    refuse_other_server,
)
from extraction.salvage import salvage
from extraction.server_link import ServerLink
from extraction.server_wait import refuse_router, relay_warnings, wait_for_server
from extraction.session import Session, open_session
from extraction.spool import dump_bytes
from hsstore.errors import RefusedError
from hsstore.spec import CanaryRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from extraction.access import Access
    from extraction.addresses import ServerAddress
    from extraction.options import ExtractOptions
    from extraction.requester import Requester
    from extraction.spool import RequestId, ServerInfo, SpoolClient, SpoolView
    from hsstore.create import Golden
    from hsstore.store import Store


@dataclass(slots=True, eq=False)
class Lane:
    """One server that has proven itself, and what is under way there."""

    address: ServerAddress
    info: ServerInfo
    link: ServerLink
    spool: SpoolClient
    requester: Requester
    budget: ByteBudget
    """Of the server's spool."""
    flight: FlightCap
    golden: Golden
    salvaged: dict[int, RequestId] = field(default_factory=dict)
    """Dumps of dead runs that still count, by sample."""
    canary: Canary | CanaryRecord = field(default_factory=lambda: CanaryRecord(verdict="off"))
    """Or why there is none."""
    bound: int = 0
    """Samples that were given to this server, and whose dumps have not come."""
    checks: int = 0
    """Canaries that are under way beside them."""
    tokens_before: int = 0
    """That the run had appended when it began to ask here."""
    tokens_asked: int = 0
    dumps: int = 0
    """That came."""

    @property
    def has_seat(self) -> bool:
        """Whether one more sample can be given to it."""
        return self.bound < self.flight.cap and self.flight.takes_more

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, and nothing of ours lies in its spool."""
        return not (self.bound or self.checks or self.budget.used_bytes)

    async def refuse_wrong_states(self) -> None:
        """Check the canary before anything of the server is used: nothing has to be taken back.

        Raises
        ------
        RefusedError
        """
        try:
            if isinstance(self.canary, Canary):
                await self.canary.before()
        except CanaryError as error:
            raise RefusedError(str(error)) from error

    def dump_bytes(self, rows: int) -> int:
        """Return the size of a dump of so many tokens."""
        return dump_bytes(rows, self.info)

    @property
    def in_flight(self) -> int:
        """Requests under way, those of the handshake and of the canary included."""
        return max(self.requester.in_flight, self.flight.in_flight)


@dataclass(frozen=True, slots=True)
class Setting:
    """What all lanes of a run have in common."""

    store: Store
    options: ExtractOptions
    run: str
    access: Access
    report: Callable[[str], object]
    """Told when a lane waits for its server, and when it shakes hands."""
    created_with: str = ""
    """URL of the server that the store was created with just now: it has proven itself."""


def link_to(address: ServerAddress, options: ExtractOptions, access: Access) -> ServerLink:
    """Make ready to talk to a server."""
    mirror = (address.relay, address.spool) if address.relay else None
    return ServerLink(address.url, options.max_in_flight, access, mirror)


def spool_budget(
    spool: SpoolView, wanted_bytes: int | None, sharers: int, promised_bytes: int
) -> int:
    """Return what may be used of a spool: at most what is free, or held by files that are ours.

    Parameters
    ----------
    wanted_bytes : int, optional
        None: half of it, in equal parts for all servers, as they use the same memory.
    promised_bytes : int
        What others may still take.
    """
    available = spool.headroom_bytes() + spool.scan().allocated_bytes
    return max(0, min(wanted_bytes or available // 2 // sharers, available - promised_bytes))


@asynccontextmanager
async def open_lane(
    setting: Setting,
    address: ServerAddress,
    lanes: Callable[[], Collection[Lane]],
    *,
    sharers: int,
    opened_before: int,
) -> AsyncIterator[Lane]:
    """Open a lane for a while; at the end nothing of this run is left in its spool.

    Parameters
    ----------
    lanes : callable
        Returns the others that are open.
    sharers : int
        Servers among which memory for spools is shared.
    opened_before : int
        Lanes that this run has opened: no server captures an id twice.

    Raises
    ------
    RefusedError
        It is no server for this store, or its spool is somebody else's.
    InterruptedRunError
        It is not there, or breaks every request.
    """
    store, options = setting.store, setting.options
    attempt = HANDSHAKE_ATTEMPTS * opened_before
    async with link_to(address, options, setting.access) as link:
        setting.report("waiting for server")
        info = await wait_for_server(link, address.spool, options.server_wait_seconds)
        relay_warnings(info)
        store.spec.refuse_other_model(model_of(info))

        async with open_session(
            options,
            address.spool,
            link,
            setting.run,
            store.spec.store,
            partial(refuse_other_server, info),
        ) as session:
            pending = (await asyncio.to_thread(store.completion)).pending
            found = await asyncio.to_thread(
                salvage, session.spool, setting.run, store.spec, pending
            )
            promised = sum(one.budget.limit_bytes - one.budget.used_bytes for one in lanes())
            limit = spool_budget(session.spool, options.spool_budget_bytes, sharers, promised)
            budget = ByteBudget(limit)
            for rid in found.values():
                budget.take(dump_bytes(rid.rows, info))
            golden = await _shake_hands(setting, session, link, info, attempt)
            lane = Lane(
                address=address,
                info=info,
                link=link,
                spool=session.spool,
                requester=session.requester,
                budget=budget,
                flight=FlightCap(options.max_in_flight),
                golden=golden,
                salvaged=found,
            )
            lane.canary = await asyncio.to_thread(_make_canary, setting, lane, sharers, attempt)
            yield lane


async def _shake_hands(
    setting: Setting, session: Session, link: ServerLink, info: ServerInfo, attempt: int
) -> Golden:
    """Shake hands, and compare the golden states with the store's."""
    store = setting.store
    prefix = store.spec.golden_input_ids
    if not prefix:
        tokens = (await asyncio.to_thread(store.input_ids, 0))[:GOLDEN_ROWS]
    else:
        tokens = np.array(prefix, dtype=np.int32)
    await session.requester.wait_until_up()
    setting.report("handshake")
    hand = Handshake(
        session.requester,
        session.spool,
        model_of(info),
        setting.run,
        store.spec.store,
        len(store),
    )
    golden = await hand.golden(tokens, attempt + 1)
    if setting.created_with != link.url:
        await refuse_router(link)
        await hand.refuse_spread(tokens, attempt)
    if prefix:
        expected = await asyncio.to_thread(store.plan_array, "golden")
        refuse_other_golden(expected, golden.bits.view(expected.dtype))
    return golden


def _make_canary(setting: Setting, lane: Lane, sharers: int, attempt: int) -> Canary | CanaryRecord:
    """Return the canary, or why there is none. Blocks: it reads tokens."""
    store, options = setting.store, setting.options
    if lane.info.isolated or not options.canary:
        return CanaryRecord(verdict="isolated" if lane.info.isolated else "off")
    budget = lane.budget
    plan = plan_canary(
        store,
        store.completion().pending,
        min(
            options.memory_bytes // MEMORY_SHARE // sharers, budget.limit_bytes - budget.used_bytes
        ),
        max_in_flight=options.max_in_flight,
        pause_seconds=options.canary_pause_seconds,
    )
    return Canary(
        plan, store, setting.run, lane.info, lane.link, lane.spool, lane.requester, attempt
    )

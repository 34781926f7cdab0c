"""A lane: all that belongs to one server during a run, and how it is opened.

::

    wait for the server -> same model -> hold its spool -> salvage -> handshake -> same golden states
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

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
from extraction.spool import SpoolError, SpoolView, dump_bytes
from hsstore.errors import InterruptedRunError, RefusedError
from hsstore.spec import CanaryRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence

    import numpy.typing as npt

    from extraction.access import Access
    from extraction.addresses import ServerAddress
    from extraction.options import ExtractOptions
    from extraction.requester import Requester
    from extraction.spool import RequestId, ServerInfo, SpoolClient
    from hsstore.create import Golden
    from hsstore.store import Store


Memory: TypeAlias = "frozenset[tuple[str, int]]"
"""Host (empty: this one) and device of each file system that takes a server's dumps; behind a relay there
are two. Lanes that have one in common share it."""


class Promise(NamedTuple):
    """What a lane may take of the memory behind its spool."""

    memory: Memory
    budget: ByteBudget
    spool: SpoolView


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
    memory: Memory = frozenset()

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
    handshakes: Iterator[int] = field(default_factory=count)
    """Numbers those of the run: no server captures an id twice."""
    promises: list[Promise] = field(default_factory=list)
    """Of the lanes that are open, or about to be."""


def link_to(address: ServerAddress, options: ExtractOptions, access: Access) -> ServerLink:
    """Make ready to talk to a server."""
    mirror = (address.relay, address.spool) if address.relay else None
    return ServerLink(address.url, options.max_in_flight, access, mirror)


def spool_budgets(addresses: Sequence[ServerAddress], wanted_bytes: int | None) -> list[int]:
    """Return the budget of each spool that is there, in bytes: what lanes will find, if they open one by one."""
    promises: list[Promise] = []
    for address in addresses:
        with suppress(SpoolError, OSError):  # its lane will say so
            promise = _promise_nothing(address, SpoolView(address.spool))
            _fit(promise, promises, wanted_bytes, addresses)
            promises.append(promise)
    return [one.budget.limit_bytes for one in promises]


def share_again(setting: Setting, peers: Collection[ServerAddress]) -> None:
    """Let the lanes that are open have what one that was closed has left."""
    for promise in setting.promises:
        with suppress(OSError):  # its spool was removed: its lane will find out
            _fit(promise, setting.promises, setting.options.spool_budget_bytes, peers)
            promise.budget.recheck()


def _promise_nothing(address: ServerAddress, spool: SpoolView) -> Promise:
    memory = {("", spool.directory.path.stat().st_dev)}
    if address.relay:
        memory.add((address.memory_host, 0))
    return Promise(frozenset(memory), ByteBudget(0), spool)


def _fit(
    promise: Promise,
    promises: Collection[Promise],
    wanted_bytes: int | None,
    peers: Collection[ServerAddress],
) -> None:
    """Let a budget have what others leave in each memory; never less than it has.

    Parameters
    ----------
    wanted_bytes : int, optional
        None: half of the memory, in equal parts for all servers that share it.
    """
    memory, budget, spool = promise
    rooms, held = spool.rooms_bytes(), spool.scan().allocated_bytes
    limits = []
    for host, device in memory:
        shares = (one for one in promises if (host, device) in one.memory and one is not promise)
        others = [one.budget for one in shares]
        available = held + (rooms[bool(host)] if len(memory) > 1 else min(rooms))
        used = sum(one.used_bytes for one in others)
        promised = sum(max(0, one.limit_bytes - one.used_bytes) for one in others)
        sharers = max(1, sum(host in {"", one.memory_host} for one in peers))
        wanted = wanted_bytes or (available + used) // 2 // sharers
        limits.append(min(wanted, available - promised))
    budget.limit_bytes = max(budget.limit_bytes, min(limits))


@contextmanager
def _promise(
    setting: Setting, address: ServerAddress, spool: SpoolView, peers: Collection[ServerAddress]
) -> Iterator[Promise]:
    """Hold a part of the memory behind a spool, which nobody else is promised meanwhile."""
    try:
        promise = _promise_nothing(address, spool)
        _fit(promise, setting.promises, setting.options.spool_budget_bytes, peers)
    except OSError as error:  # it was removed just now
        raise InterruptedRunError(f"spool {address.spool} cannot be used: {error}") from error
    setting.promises.append(promise)
    try:
        yield promise
    finally:
        setting.promises.remove(promise)


@asynccontextmanager
async def open_lane(
    setting: Setting,
    address: ServerAddress,
    peers: Collection[ServerAddress],
    greet: Callable[[Requester], object],
) -> AsyncIterator[Lane]:
    """Open a lane for a while; at the end nothing of this run is left in its spool.

    Parameters
    ----------
    peers : collection of ServerAddress
        All servers that the run hopes for: they share memory.
    greet : callable
        Called when the server is there, and proves itself from then on.

    Raises
    ------
    RefusedError
        It is no server for this store, or its spool is somebody else's.
    InterruptedRunError
        It is not there, breaks every request, or its spool has no room.
    """
    store, options = setting.store, setting.options
    attempt = HANDSHAKE_ATTEMPTS * next(setting.handshakes)
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
            await session.requester.wait_until_up()
            with _promise(setting, address, session.spool, peers) as (memory, budget, _):
                _want_room(budget, store.length[pending], info)
                for rid in found.values():
                    budget.take(dump_bytes(rid.rows, info))
                setting.report("handshake")
                greet(session.requester)
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
                    memory=memory,
                )
                lane.canary = await asyncio.to_thread(
                    _make_canary, setting, lane, len(peers), attempt
                )
                yield lane


def _want_room(budget: ByteBudget, rows: npt.NDArray[np.int32], info: ServerInfo) -> None:
    """Refuse, for now, a server that could never be asked for anything.

    Raises
    ------
    InterruptedRunError
    """
    smallest = dump_bytes(int(rows.min()), info) if rows.size else 0
    if budget.limit_bytes < smallest:
        raise InterruptedRunError(
            f"no room for its spool: it may take {budget.limit_bytes:,} bytes, and the smallest "
            f"dump takes {smallest:,}. Other servers have the rest (--spool-budget-gb), or others "
            "fill that memory (df, ls -l)"
        )


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


def _make_canary(setting: Setting, lane: Lane, servers: int, attempt: int) -> Canary | CanaryRecord:
    """Return the canary, or why there is none. Blocks: it reads tokens."""
    store, options = setting.store, setting.options
    if lane.info.isolated or not options.canary:
        return CanaryRecord(verdict="isolated" if lane.info.isolated else "off")
    budget = lane.budget
    plan = plan_canary(
        store,
        store.completion().pending,
        min(
            options.memory_bytes // MEMORY_SHARE // max(1, servers),
            budget.limit_bytes - budget.used_bytes,
        ),
        max_in_flight=options.max_in_flight,
        pause_seconds=options.canary_pause_seconds,
    )
    return Canary(
        plan, store, setting.run, lane.info, lane.link, lane.spool, lane.requester, attempt
    )

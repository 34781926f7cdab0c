"""The canary: a server must compute the same states under load as it does alone.

Some faults show neither in the tokens nor in the shape of a dump: a fused all-reduce that hands over
one rank's part of a sum, a graph that was captured for another batch, layers that are skipped when
two batches overlap. So a few samples' prefixes are asked for alone, twice, and then again within full
batches: before the first commit, and now and then while the run goes on.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from extraction.asking import NoRoomError, all_of, ask_patiently
from extraction.check import find_fault
from extraction.deviation import Deviations, row_differences, smallest_threshold
from extraction.requester import CaptureFailedError, DumpMissingError, ServerBusyError
from extraction.server_link import RequestRefusedError, ServerAwayError
from extraction.spool import DUMP_OVERHEAD_BYTES, DumpError, RequestId, dump_bytes
from hsstore.dtype import bits_dtype
from hsstore.errors import InterruptedRunError, RefusedError
from hsstore.plausible import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from extraction.budget import ByteBudget
    from extraction.flight import FlightCap
    from extraction.requester import Requester
    from extraction.server_link import ServerLink
    from extraction.spool import Dump, ServerInfo, SpoolClient
    from hsstore.spec import CanaryRecord, CanarySlot
    from hsstore.store import Store

log = logging.getLogger(__name__)

SAMPLES = 3
"""Prefixes that are watched."""
BATCH = 16
"""Requests that fill a batch, at most."""
TOKENS_A_ROW = 2000
MIN_ROWS, MAX_ROWS = 32, 1024
"""A prefix has one row for so many pending tokens, within these bounds. Asked for 9 times before the
run, with 13 fillers, and 21 times in it, it costs about 2 % of a run at most, and far less of a large
one."""
PARTS = 8
"""The prefixes are asked for again after each such part of the pending tokens."""
FIRST_RID = 100
"""Ids of canaries begin so far behind the store's samples: handshakes lie between."""
MEMORY_SHARE = 8
"""The states that are kept may take this part of the memory budget."""
CAUSES = (
    "Known to cause this: fused all-reduce with aux capture at TP > 1 (partial sums), two-batch "
    "overlap, CUDA graphs of prefill, kernels for quantised weights. Start the server without them "
    "(for SGLang --disable-cuda-graph, no --enable-two-batch-overlap, no all-reduce fusion) and run "
    "again; --no-canary extracts these states all the same"
)

ASKING_FAILED = (
    RequestRefusedError,
    ServerAwayError,
    ServerBusyError,
    DumpMissingError,
    CaptureFailedError,
    DumpError,
    NoRoomError,
)


class CanaryError(RefusedError):
    """The states depend on what else the server computes: none of them can be trusted.

    Parameters
    ----------
    good_committed : int
        Samples that the run had committed when its last good check of this server began.
    """

    def __init__(self, message: str, good_committed: int) -> None:
        super().__init__(message)
        self.good_committed = good_committed

    def after_withdrawal(self, withdrawn: int, left: list[int]) -> CanaryError:
        """Add how many samples are pending again, and which could not be made so."""
        told = f"{self}. {withdrawn} samples committed since the last good check are pending again"
        if left:
            told += (
                f"; {len(left)} more stay complete, and cannot be trusted, since other workers have their "
                f"spans: {', '.join(map(str, left[:20]))}{', ...' if len(left) > 20 else ''}"
            )
        return CanaryError(told, self.good_committed)


def canary_rows(pending_tokens: int) -> int:
    """Return the length of a prefix, in tokens.

    >>> canary_rows(10_000), canary_rows(1_000_000), canary_rows(88_000_000)
    (32, 500, 1024)
    """
    return min(max(pending_tokens // TOKENS_A_ROW, MIN_ROWS), MAX_ROWS)


def choose_samples(length: npt.NDArray[np.int32], rows: int, count: int) -> list[int]:
    """Choose samples that are long enough, spread over all; else the longest. Pure.

    >>> choose_samples(np.array([9, 40, 50, 8, 60, 70], np.int32), 32, 3)
    [1, 2, 5]
    >>> choose_samples(np.array([9, 40, 8], np.int32), 32, 2)
    [0, 1]
    """
    enough = np.flatnonzero(length >= rows)
    if len(enough) < count:
        return sorted(np.argsort(-length, kind="stable")[:count].tolist())
    return enough[np.linspace(0, len(enough) - 1, count).astype(int)].tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """What will be asked for."""

    tokens: dict[int, npt.NDArray[np.int32]]
    """First tokens of the watched samples, by sample; empty where there is no room for any."""
    fillers: list[npt.NDArray[np.int32]]
    """Prefixes of other samples, which fill the first batch."""
    part_tokens: int
    """Tokens to be appended between two checks."""
    pause_seconds: float
    """At least so much time lies between two checks."""


def plan_canary(
    store: Store,
    pending: npt.NDArray[np.bool_],
    room_bytes: int,
    *,
    max_in_flight: int,
    pause_seconds: float,
) -> CanaryPlan:
    """Choose prefixes of pending samples. Blocks: it reads their tokens.

    Parameters
    ----------
    pending : bool (n,)
    room_bytes : int
        What the watched prefixes may take in the spool, and in memory.
    """
    samples = np.flatnonzero(pending)
    length = store.length[samples]
    pending_tokens = int(length.sum(dtype=np.int64))
    row_bytes = store.spec.geometry.row_bytes + np.dtype(np.int32).itemsize
    room_rows = (room_bytes // SAMPLES - DUMP_OVERHEAD_BYTES) // row_bytes
    rows = min(canary_rows(pending_tokens), room_rows)
    watched = samples[choose_samples(length, rows, SAMPLES)].tolist() if rows > 0 else []
    count = min(max_in_flight, BATCH) - len(watched)
    others = np.setdiff1d(samples, watched)[: max(0, count)].tolist() if watched else []
    return CanaryPlan(
        {sample: store.input_ids(sample)[:rows] for sample in watched},
        [store.input_ids(sample)[:rows] for sample in others],
        max(1, pending_tokens // PARTS),
        pause_seconds,
    )


class Canary:
    """The canary of one run, over one session.

    Parameters
    ----------
    attempt : int
        In the ids of its requests: a server captures no id twice, also not in a second session.
    """

    def __init__(
        self,
        plan: CanaryPlan,
        store: Store,
        run: str,
        info: ServerInfo,
        link: ServerLink,
        spool: SpoolClient,
        requester: Requester,
        attempt: int = 0,
    ) -> None:
        self._plan = plan
        self._store = store
        self._run = run
        self._info = info
        self._link = link
        self._spool = spool
        self._requester = requester
        self._attempt = attempt
        self._alone: dict[int, npt.NDArray[Any]] = {}
        quantised = bool(info.flags.get("quantization"))
        threshold = smallest_threshold(store.spec.model.dtype, quantised=quantised)
        self._found = Deviations(store.spec.model.slots, threshold)
        self._sent = 0
        self._checks = 0
        self._parts_done = 0
        self._checked_at = 0.0
        self._said: set[tuple[int, str]] = set()
        self.good_committed = 0
        """Samples that this run had committed when the last good check began."""

    @property
    def record(self) -> CanaryRecord:
        """What has been found so far."""
        rows = max((len(self._plan.tokens[sample]) for sample in self._alone), default=0)
        return self._found.record(list(self._alone), rows, self._checks)

    async def before(self) -> None:
        """Ask alone, twice, and once within a batch; to be called before anything is committed.

        Raises
        ------
        CanaryError
            The states from within the batch are others.
        InterruptedRunError, RefusedError
            The server does not give them at all.
        """
        if not self._plan.tokens:
            log.warning("canary: no room for a few short prefixes, so nothing is compared")
        for sample in self._plan.tokens:
            await self._learn(sample)
        filling = [asyncio.create_task(self._fill(tokens)) for tokens in self._plan.fillers]
        try:
            compared = await all_of([self._compare(sample) for sample in self._alone])
        finally:
            for task in filling:
                task.cancel()
            await asyncio.gather(*filling, return_exceptions=True)
        self._conclude(any(compared), committed=0)
        self._checked_at = asyncio.get_running_loop().time()

    def due(self, tokens: int) -> bool:
        """Tell whether to check now that so many tokens are appended; at most once a part."""
        part, now = tokens // self._plan.part_tokens, asyncio.get_running_loop().time()
        if not self._parts_done < part < PARTS or not self._alone:
            return False
        if now - self._checked_at < self._plan.pause_seconds:
            return False
        self._parts_done, self._checked_at = part, now
        return True

    async def check(self, flight: FlightCap, budget: ByteBudget, committed: int) -> None:
        """Ask again while the run goes on, in seats and bytes of the run's own.

        Parameters
        ----------
        committed : int
            Samples that this run has committed when the check begins.

        Raises
        ------
        CanaryError
            The states are others now.
        """
        again = [self._compare_within(sample, flight, budget) for sample in self._alone]
        self._conclude(any(await all_of(again)), committed)

    # --- asking -------------------------------------------------------------------------------

    async def _learn(self, sample: int) -> None:
        """Ask for a prefix alone, twice; it is not watched where the server does not give it."""
        try:
            rid, dump = await self._ask(sample, alone=True)
            self._alone[sample] = await self._use(sample, rid, dump, np.array)
            rid, dump = await self._ask(sample, alone=True)
            self._found.add_repeat(await self._use(sample, rid, dump, self._moved(sample)))
        except ASKING_FAILED as error:
            self._alone.pop(sample, None)
            _skip(sample, error)

    async def _compare(self, sample: int) -> bool:
        """Ask once more, not alone; False where the server does not give it."""
        try:
            rid, dump = await self._ask(sample, alone=False)
            self._found.add(sample, await self._use(sample, rid, dump, self._moved(sample)))
        except ASKING_FAILED as error:
            return _skip(sample, error)
        return True

    async def _compare_within(self, sample: int, flight: FlightCap, budget: ByteBudget) -> bool:
        """Ask once, with no patience: it is the run's own requests that have to succeed."""
        rid = self._new_rid(sample)
        needed = dump_bytes(rid.rows, self._info)
        await budget.acquire(needed)
        try:
            async with flight.seat():
                self._link.refuse_to_wait()  # others may be there: compare when the next part is done
                dump = await self._requester.fetch(rid, self._plan.tokens[sample])
            self._found.add(sample, await self._use(sample, rid, dump, self._moved(sample)))
        except (*ASKING_FAILED, InterruptedRunError, RefusedError) as error:
            # What refuses for good refuses the next sample's request, too: that one drops the server.
            self._spool.discard(rid)
            return _skip(sample, error)
        finally:
            budget.release(needed)
        return True

    async def _ask(self, sample: int, *, alone: bool) -> tuple[RequestId, Dump]:
        tokens = self._plan.tokens[sample]
        return await ask_patiently(self._requester, self._new_rid(sample), tokens, prompt=alone)

    def _new_rid(self, sample: int) -> RequestId:
        """Name a request for a sample that does not exist: nobody ever salvages it."""
        self._sent += 1
        index = len(self._store) + FIRST_RID + self._sent
        return RequestId(self._run, index, self._attempt, len(self._plan.tokens[sample]))

    async def _use(
        self,
        sample: int,
        rid: RequestId,
        dump: Dump,
        work: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    ) -> npt.NDArray[Any]:
        """Check a dump, work on its raw bits (T, slots, hidden) in a thread, and give it back."""
        spec = self._store.spec

        def run() -> Fault | npt.NDArray[Any]:
            tokens = self._plan.tokens[sample]
            fault = find_fault(dump, tokens, spec.store, spec.model, self._requester.knows)
            return fault or work(dump.hidden.view(bits_dtype(spec.model.dtype)))

        result = await asyncio.to_thread(run)
        dump.close()
        self._spool.give_back(rid)
        if isinstance(result, Fault):
            raise CaptureFailedError(result.message)
        return result

    def _moved(self, sample: int) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
        def differences(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return row_differences(self._alone[sample], bits, self._store.spec.model.dtype)

        return differences

    async def _fill(self, tokens: npt.NDArray[np.int32]) -> None:
        """Send a request that only takes part in the batch: by its name nobody captures it."""
        self._sent += 1
        with suppress(ServerAwayError, RequestRefusedError):
            await self._link.generate(f"canary-{self._run}-{self._sent}", tokens.tolist())

    # --- judging ------------------------------------------------------------------------------

    def _conclude(self, compared: bool, committed: int) -> None:  # noqa: FBT001  # of one caller
        self._checks += compared
        slots = self._found.slots()
        wrong = [self._describe(one) for one in slots if one.verdict == "wrong"]
        if wrong:
            raise CanaryError(
                "canary: the server computes other states within a batch than alone: "
                f"{'; '.join(wrong)}. {CAUSES}",
                self.good_committed,
            )
        if not compared:
            return
        self.good_committed = committed
        for one in slots:
            if one.verdict != "same" and (one.slot, one.verdict) not in self._said:
                self._said.add((one.slot, one.verdict))
                log.warning("canary: %s; noted in the run's record", self._describe(one))

    def _describe(self, one: CanarySlot) -> str:
        layers = self._store.spec.model.layers
        name = f"layer {layers[one.slot]}" if one.slot < len(layers) else "the final state"
        limit = f"up to {one.threshold:.2%} may be rounding"
        if one.verdict == "rows":
            return (
                f"slot {one.slot} ({name}): single tokens differ by up to {one.worst:.1%} ({limit}), "
                "as where a mixture of experts is nearly tied"
            )
        samples = ", ".join(map(str, self._found.beyond(one.slot)))
        return (
            f"slot {one.slot} ({name}): the median token differs by {one.median:.2%} in sample "
            f"{samples} ({limit}; asked for twice alone, it differs by {one.floor:.2%})"
        )


def _skip(sample: int, error: Exception) -> bool:
    log.warning(
        "canary: the prefix of sample %d was not compared: %s (--no-canary asks for none)",
        sample,
        error,
    )
    return False

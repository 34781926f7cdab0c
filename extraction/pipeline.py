"""The extraction of all pending samples, from admission to commit.

::

    plan -> admission (bytes) -> request -> dump -> check -> append -> commit -> give back

Blocks are opened in order, and requests go out block by block, so that blocks close. A sample's
bytes are charged to the spool budget before it is asked for, until its dump is given back.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from extraction.attempts import Attempts
from extraction.block_order import open_cap
from extraction.block_sink import OpenBlock
from extraction.budget import ByteBudget
from extraction.canary import Canary, CanaryError
from extraction.check import find_fault
from extraction.error_group import first_of
from extraction.failure_limit import FailureLimit
from extraction.holdings import Holdings, Placed
from extraction.requester import CaptureFailedError, DumpMissingError, ServerBusyError
from extraction.server_link import RequestRefusedError, ServerAwayError
from extraction.spool import DumpError, DumpLayout, RequestId
from extraction.stages import StageTable
from hsstore.digest import PayloadHasher
from hsstore.errors import HsstoreError, InterruptedRunError, OutputError, RefusedError
from hsstore.plausible import Fault
from hsstore.spec import FailureReason

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from extraction.block_sink import BlockSink
    from extraction.fleet import Fleet
    from extraction.lane import Lane
    from extraction.options import ExtractOptions
    from extraction.spool import Dump
    from extraction.work import Work
    from hsstore.store import Store

log = logging.getLogger(__name__)

STRAGGLER_SECONDS = 30.0
"""When no new block may be opened, those that got nothing for so long are committed in part; what
comes later reopens them."""


class Pipeline:
    """One run over one store."""

    def __init__(
        self,
        store: Store,
        options: ExtractOptions,
        run: str,
        fleet: Fleet,
        sink: BlockSink,
        work: Work,
    ) -> None:
        self._group = asyncio.TaskGroup()
        self._store = store
        self._options = options
        self._run = run
        self.fleet = fleet
        self._sink = sink
        self.work = work
        self.stages = StageTable()
        self._memory_budget = ByteBudget(options.memory_bytes)
        self.open_blocks: dict[int, OpenBlock] = {}
        self.holdings = Holdings(len(store), self.open_blocks, self.stages)
        fleet.on_join, fleet.on_leave = self._welcome, self.holdings.forget
        fleet.on_ended = self._release
        self._sent = 0
        self._closed = asyncio.Event()
        allowed = math.ceil(options.max_failures * len(store))
        self._failure_limit = FailureLimit(allowed, options.max_failures_in_row)
        self.retries = 0
        self.failed_now = 0
        self.tokens_appended = 0
        self.bytes_appended = 0
        self.message = ""

    async def run(self) -> None:
        """Extract every pending sample; on cancellation commit what has been appended.

        Raises
        ------
        OutputError, RefusedError, InterruptedRunError, TooManyFailuresError
        """
        try:
            async with asyncio.TaskGroup() as group:
                failing = group.create_task(self._fail_with_the_fleet())
                async with self._group:
                    await self._dispatch()
                failing.cancel()
        except BaseExceptionGroup as errors:
            # Wrong states first, which must not be committed; then the disk's error.
            first = first_of(errors, CanaryError, OutputError, HsstoreError)
            if isinstance(first, CanaryError):
                await self._forsake(first)
            await self._close(after_error=True)
            raise first from errors
        except asyncio.CancelledError:
            await self._close(after_error=False)
            raise

    async def _fail_with_the_fleet(self) -> None:
        await asyncio.shield(self.fleet.failure)

    def _welcome(self, lane: Lane) -> None:
        """Begin to use a server: what a dead run has left in its spool needs no request."""
        lane.requester.on_answer = partial(self.stages.enter, "answered")
        lane.tokens_before = self.tokens_appended
        if isinstance(lane.canary, Canary):
            lane.canary.good_committed = self._sink.committed
        self.work.prefer(self.holdings.adopt(lane))

    async def _release(self, lane: Lane) -> None:
        """Commit what the dumps of a server are in, full or not: else it could not leave."""
        for open_block in self.holdings.blocks_of(lane):
            await self._commit(open_block)

    # --- dispatch -----------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        while (found := await self.work.next()) is not None:
            await self._wait_for_room()
            open_block = await asyncio.to_thread(self._open, *found)
            open_block.changed_at_seconds = asyncio.get_running_loop().time()
            self.open_blocks[open_block.block.index] = open_block
            for sample in found[1]:
                await self._admit(sample)
                salvaged = self.holdings.begin(sample)
                self._group.create_task(self._extract(open_block, sample, salvaged))
        self.holdings.forget()  # of samples that another worker has done

    def _open(self, block_index: int, samples: list[int]) -> OpenBlock:
        tokens = self._store.input_ids_of(samples)
        return OpenBlock(self._store.layout.block(block_index), tokens, set(samples))

    async def _wait_for_room(self) -> None:
        while self._has_enough_open():
            self._closed.clear()
            try:
                # Not `wait_for`: before Python 3.12 it can swallow a cancellation.
                async with asyncio.timeout(STRAGGLER_SECONDS):
                    await self._closed.wait()
            except TimeoutError:
                await self._park_stragglers()

    def _has_enough_open(self) -> bool:
        blocks = self.open_blocks.values()
        waiting = sum(len(block.waiting) for block in blocks)
        opened = sum(not block.parked for block in blocks)
        return opened >= open_cap(waiting, self.fleet.max_in_flight)

    async def _park_stragglers(self) -> None:
        """Commit in part what got nothing for long, so that other blocks can be opened."""
        now = asyncio.get_running_loop().time()
        for open_block in list(self.open_blocks.values()):
            if now - open_block.changed_at_seconds > STRAGGLER_SECONDS:
                open_block.parked = True
                await self._commit(open_block)

    async def _admit(self, sample: int) -> None:
        if not self.holdings.is_salvaged(sample):
            with self.stages.at("admit", f"sample {sample}"):
                await self.fleet.admission.wait_for_turn()

    def _dump_bytes(self, sample: int) -> int:
        model = self._store.spec.model
        rows = int(self._store.length[sample])
        return DumpLayout(rows, model.slots, model.hidden, model.dtype).size_bytes

    def _too_large(self, sample: int) -> Fault | None:
        needed = self._dump_bytes(sample)
        limit = min(self.fleet.limit_bytes, self._memory_budget.limit_bytes)
        if needed <= limit:
            return None
        message = f"its dump takes {needed:,} bytes, the budgets allow {limit:,}"
        return Fault(FailureReason.TOO_LARGE, message)

    # --- one sample ---------------------------------------------------------------------------

    async def _extract(self, open_block: OpenBlock, sample: int, salvaged: Placed | None) -> None:
        fault = self._too_large(sample) or await self._obtain(open_block, sample, salvaged)
        open_block.waiting.discard(sample)
        if fault is not None:
            if salvaged is not None:
                salvaged.lane.spool.discard(salvaged.rid)
            self.holdings.discharge(sample)
            self._give_up(open_block, sample, fault)
        if not open_block.waiting:
            await self._commit(open_block)
            self.open_blocks.pop(open_block.block.index, None)
            self._closed.set()
            await self.work.close(open_block.block.index)

    async def _obtain(
        self, open_block: OpenBlock, sample: int, salvaged: Placed | None
    ) -> Fault | None:
        """Get one sample appended; return why not when its attempts are used up."""
        tries = Attempts(self._options.max_attempts, skip_too_large=self._options.skip_too_large)
        placed = salvaged or await self._place(sample, again=False)
        while placed is not None:
            try:
                fault = await self._attempt(open_block, sample, placed, alone=tries.alone)
                if fault is None:
                    self._failure_limit.good()
                    return None
                tries.failed()
            except ServerBusyError as error:
                fault = self._make_room(placed.lane, sample, tries, error)
            except ServerAwayError as error:
                fault = tries.away(error)
                self.fleet.park(placed.lane, error)
            self.holdings.discharge(sample)
            if tries.over:
                return fault
            self._note_retry(sample, fault)
            pause_seconds = tries.next_pause_seconds()
            if not self.fleet.is_replaced(placed.lane):
                with self.stages.at("retry", f"sample {sample}"):
                    await asyncio.sleep(pause_seconds)
            placed = await self._place(sample, again=True)
        return self._too_large(sample)

    async def _place(self, sample: int, *, again: bool) -> Placed | None:
        """Wait for a server; None where none can hold the sample any more."""
        rid, nbytes = self._new_rid(sample), self._dump_bytes(sample)
        with self.stages.at("queue", rid):
            while (lane := await self.fleet.admission.place(nbytes, again=again)) is None:
                if self._too_large(sample):  # else a larger spool came just now
                    return None
        self.holdings.charge(sample, lane, nbytes)
        return Placed(lane, rid)

    def _make_room(self, lane: Lane, sample: int, tries: Attempts, error: ServerBusyError) -> Fault:
        """Answer a spool that is full whatever our budget says: others may use its memory too."""
        alone, missing = tries.alone, self._dump_bytes(sample)
        lane.flight.busy(str(error))
        for one in self.fleet.sharing_memory(lane):
            alone = alone and not one.spool.scan().finished
            missing = self.holdings.relieve(one, missing)
            one.spool.trim_free(0)
        try:
            return tries.busy(error, lane, alone=alone)
        except RefusedError as refusal:
            self.fleet.lose(lane, refusal)
            tries.forget_busy()
            return Fault(FailureReason.REFUSED, str(refusal))

    async def _attempt(
        self, open_block: OpenBlock, sample: int, placed: Placed, *, alone: bool
    ) -> Fault | None:
        """Ask once, or take the salvaged dump; check, and append."""
        spool, rid = placed.lane.spool, placed.rid
        try:
            if rid.run != self._run:
                dump = spool.open_dump(rid)
            else:
                dump = await self._fetch(placed, open_block.tokens[sample], alone=alone)
        except RequestRefusedError as error:
            return Fault(FailureReason.REFUSED, str(error))
        except (DumpMissingError, CaptureFailedError, DumpError) as error:
            spool.discard(rid)
            return Fault(FailureReason.BAD_DATA, str(error))
        fault = await self._take(open_block, sample, placed, dump)
        if fault is not None:
            spool.discard(rid)
        return fault

    async def _fetch(self, placed: Placed, tokens: npt.NDArray[np.int32], *, alone: bool) -> Dump:
        lane, rid = placed
        self.stages.enter("queue", rid)
        try:
            async with lane.flight.seat(alone=alone):
                lane.link.refuse_to_wait()
                self.stages.leave("queue", rid)
                lane.tokens_asked += tokens.size
                with self.stages.at("request", rid):
                    dump = await lane.requester.fetch(rid, tokens)
        except (RefusedError, InterruptedRunError) as error:
            self.fleet.lose(lane, error)  # raises it where there is no other
            raise ServerAwayError(str(error)) from error
        finally:
            self.stages.leave("queue", rid)
            self.stages.leave("answered", rid)
            self.fleet.admission.leave_seat(lane)
        lane.flight.good()
        lane.dumps += 1
        return dump

    async def _take(
        self, open_block: OpenBlock, sample: int, placed: Placed, dump: Dump
    ) -> Fault | None:
        """Check a dump and append it, within the memory budget."""
        (lane, rid), size = placed, dump.layout.size_bytes
        with self.stages.at("memory", rid):
            await self._memory_budget.acquire(size)
        try:
            tokens, hasher = open_block.tokens[sample], PayloadHasher()
            with self.stages.at("check", rid):
                fault = await asyncio.get_running_loop().run_in_executor(
                    self._sink.checkers, self._find_fault, lane, dump, tokens, hasher
                )
            if fault is not None:
                dump.close()
                return fault
            with self.stages.at("write", rid):
                await self._sink.append(open_block, sample, dump, hasher.digest())
        finally:
            self._memory_budget.release(size)
        open_block.held[sample] = rid
        self.stages.enter("give-back", rid)
        self.tokens_appended += tokens.size
        self.bytes_appended += tokens.size * self._store.spec.geometry.row_bytes
        lane.budget.recheck()
        self._check_canaries()
        return None

    def _check_canaries(self) -> None:
        for lane in self.fleet.admission.lanes:
            appended = self.tokens_appended - lane.tokens_before
            if isinstance(lane.canary, Canary) and lane.canary.due(appended):
                self._group.create_task(self._check_canary(lane, lane.canary))

    async def _check_canary(self, lane: Lane, canary: Canary) -> None:
        lane.checks += 1
        try:
            await canary.check(lane.flight, lane.budget, self._sink.committed)
        finally:
            lane.checks -= 1
            self.fleet.admission.look()

    def _find_fault(
        self, lane: Lane, dump: Dump, tokens: npt.NDArray[np.int32], hasher: PayloadHasher
    ) -> Fault | None:
        spec = self._store.spec
        salvaged = dump.rid.run != self._run
        knows = None if salvaged else lane.requester.knows  # of an earlier start, as it may be
        return find_fault(dump, tokens, spec.store, spec.model, knows, hasher)

    def _new_rid(self, sample: int) -> RequestId:
        self._sent += 1  # never twice the same, also not after a server's restart
        return RequestId(self._run, sample, self._sent, int(self._store.length[sample]))

    # --- commit -------------------------------------------------------------------------------

    async def _commit(self, open_block: OpenBlock) -> None:
        """Commit what a block holds, and give those dumps back."""
        with self.stages.at("commit", f"block {open_block.block.index}"):
            await self._sink.commit(open_block)
        for sample in [s for s in open_block.held if s not in open_block.appended]:
            self.holdings.give_back(open_block, sample)

    async def _forsake(self, error: CanaryError) -> NoReturn:
        """Commit nothing more, and take back what was committed since the last good check."""
        for open_block in self.open_blocks.values():
            await self._sink.discard(open_block)
        suspect = self._sink.committed_samples[error.good_committed :]
        left = await self._sink.withdraw(suspect)
        raise error.after_withdrawal(len(suspect) - len(left), left) from error

    async def _close(self, *, after_error: bool) -> None:
        """Commit every open block as far as it is appended."""
        await self._sink.settle()
        for open_block in list(self.open_blocks.values()):
            try:
                await self._commit(open_block)
            except Exception as error:  # a bug's too: the other blocks are to be committed
                if not after_error:
                    raise
                log.warning("block %d was not committed: %s", open_block.block.index, error)

    # --- failures -----------------------------------------------------------------------------

    def _give_up(self, open_block: OpenBlock, sample: int, fault: Fault) -> None:
        if fault.reason is FailureReason.TOO_LARGE and not self._options.skip_too_large:
            raise RefusedError(f"sample {sample}: {fault.message}; larger spools are gone")
        open_block.failed[sample] = fault.reason
        self.failed_now += 1
        log.warning("sample %d failed (%s): %s", sample, fault.reason.label, fault.message)
        if not self._too_large(sample):  # else known before the start, and asked for
            self._failure_limit.bad(sample, fault)

    def _note_retry(self, sample: int, fault: Fault) -> None:
        self.retries += 1
        self.message = f"sample {sample} is asked for again: {fault.message}"
        log.info(self.message)

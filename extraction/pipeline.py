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

import numpy as np

from extraction.attempts import Attempts
from extraction.block_order import by_block, open_cap
from extraction.block_sink import OpenBlock
from extraction.budget import ByteBudget
from extraction.canary import CanaryError
from extraction.check import find_fault
from extraction.error_group import first_of
from extraction.failure_limit import FailureLimit
from extraction.flight import FlightCap
from extraction.requester import CaptureFailedError, DumpMissingError, ServerBusyError
from extraction.server_link import RequestRefusedError, ServerAwayError
from extraction.spool import DumpError, RequestId, dump_bytes
from extraction.stages import StageTable
from hsstore.digest import PayloadHasher
from hsstore.errors import HsstoreError, OutputError
from hsstore.plausible import Fault
from hsstore.spec import FailureReason

if TYPE_CHECKING:
    import numpy.typing as npt

    from extraction.block_sink import BlockSink
    from extraction.canary import Canary
    from extraction.options import ExtractOptions
    from extraction.requester import Requester
    from extraction.spool import Dump, ServerInfo, SpoolClient
    from hsstore.store import Store

log = logging.getLogger(__name__)

STRAGGLER_SECONDS = 30.0
"""When no new block may be opened, those that got nothing for so long are committed in part; what
comes later reopens them."""


class Pipeline:
    """One run over one store and one server."""

    def __init__(
        self,
        store: Store,
        options: ExtractOptions,
        run: str,
        info: ServerInfo,
        spool: SpoolClient,
        requester: Requester,
        sink: BlockSink,
        spool_budget_bytes: int,
    ) -> None:
        self.canary: Canary | None = None
        """Asked for again as the run goes on, once it is set."""
        self._group = asyncio.TaskGroup()
        self._store = store
        self._options = options
        self._run = run
        self._info = info
        self._spool = spool
        self._requester = requester
        self._sink = sink
        self.stages = StageTable()
        requester.on_answer = partial(self.stages.enter, "answered")
        self.flight = FlightCap(options.max_in_flight)
        self.spool_budget = ByteBudget(spool_budget_bytes, self._relieve)
        self._memory_budget = ByteBudget(options.memory_bytes)
        self._charges: dict[int, int] = {}
        self.open_blocks: dict[int, OpenBlock] = {}
        self._salvage: dict[int, RequestId] = {}
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
            async with self._group:
                await self._dispatch()
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

    def adopt(self, salvage: dict[int, RequestId]) -> None:
        """Use dumps of a dead run, by sample, instead of asking for them again."""
        for sample, rid in salvage.items():
            self._salvage[sample] = rid
            self._charge(sample)

    def at_risk(self) -> list[int]:
        """Return the samples that a kill now would have asked for again, in order."""
        asked = map(RequestId.parse, self.stages.items("request"))
        samples = {rid.sample for rid in asked if rid is not None}
        for block in self.open_blocks.values():
            samples |= block.appended - block.held.keys()
        return sorted(samples)

    # --- dispatch -----------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        completion = await asyncio.to_thread(self._store.completion)
        pending = np.flatnonzero(completion.pending)
        for block_index, samples in by_block(self._store.layout, pending):
            await self._wait_for_room()
            open_block = await asyncio.to_thread(self._open, block_index, samples)
            open_block.changed_at_seconds = asyncio.get_running_loop().time()
            self.open_blocks[block_index] = open_block
            for sample in samples:
                await self._admit(sample)
                # Out of `_salvage`: what a task is about to use, `_relieve` must not remove.
                salvaged = self._salvage.pop(sample, None)
                self._group.create_task(self._extract(open_block, sample, salvaged))

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
        return opened >= open_cap(waiting, self._options.max_in_flight)

    async def _park_stragglers(self) -> None:
        """Commit in part what got nothing for long, so that other blocks can be opened."""
        now = asyncio.get_running_loop().time()
        for open_block in list(self.open_blocks.values()):
            if now - open_block.changed_at_seconds > STRAGGLER_SECONDS:
                open_block.parked = True
                await self._commit(open_block)

    async def _admit(self, sample: int) -> None:
        if sample in self._charges or self._too_large(sample):  # salvaged, or never asked for
            return
        needed = self._dump_bytes(sample)
        with self.stages.at("admit", f"sample {sample}"):
            await self.spool_budget.acquire(needed)
        self._charges[sample] = needed
        self._spool.trim_free(max(0, self.spool_budget.limit_bytes - self.spool_budget.used_bytes))

    def _charge(self, sample: int) -> None:
        self._charges[sample] = self._dump_bytes(sample)
        self.spool_budget.take(self._charges[sample])

    def _discharge(self, sample: int) -> None:
        self.spool_budget.release(self._charges.pop(sample, 0))

    def _dump_bytes(self, sample: int) -> int:
        return dump_bytes(int(self._store.length[sample]), self._info)

    def _too_large(self, sample: int) -> Fault | None:
        needed = self._dump_bytes(sample)
        limit = min(self.spool_budget.limit_bytes, self._memory_budget.limit_bytes)
        if needed <= limit:
            return None
        message = f"its dump takes {needed:,} bytes, the budgets allow {limit:,}"
        return Fault(FailureReason.TOO_LARGE, message)

    # --- one sample ---------------------------------------------------------------------------

    async def _extract(
        self, open_block: OpenBlock, sample: int, salvaged: RequestId | None
    ) -> None:
        fault = self._too_large(sample) or await self._obtain(open_block, sample, salvaged)
        open_block.waiting.discard(sample)
        if fault is not None:
            if salvaged is not None:
                self._spool.discard(salvaged)
            self._discharge(sample)
            self._give_up(open_block, sample, fault)
        if not open_block.waiting:
            await self._commit(open_block)
            self.open_blocks.pop(open_block.block.index, None)
            self._closed.set()

    async def _obtain(
        self, open_block: OpenBlock, sample: int, salvaged: RequestId | None
    ) -> Fault | None:
        """Get one sample appended; return why not when its attempts are used up."""
        options = self._options
        tries = Attempts(options.max_attempts, skip_too_large=options.skip_too_large)
        while True:
            try:
                fault = await self._attempt(open_block, sample, salvaged, alone=tries.alone)
                if fault is None:
                    self._failure_limit.good()
                    return None
                tries.failed()
            except ServerBusyError as error:
                fault = self._make_room(sample, tries, error)
            except ServerAwayError as error:
                fault = tries.away(error)
                self._requester.park(error)
            if tries.over:
                return fault
            self._note_retry(sample, fault)
            salvaged = None
            with self.stages.at("retry", f"sample {sample}"):
                await asyncio.sleep(tries.next_pause_seconds())

    def _make_room(self, sample: int, tries: Attempts, error: ServerBusyError) -> Fault:
        """Answer a spool that is full whatever our budget says: others may use its memory too."""
        alone = tries.alone and not self._spool.scan().finished
        self.flight.busy(str(error))
        self._relieve(self._dump_bytes(sample))
        self._spool.trim_free(0)
        return tries.busy(error, alone=alone)

    async def _attempt(
        self, open_block: OpenBlock, sample: int, salvaged: RequestId | None, *, alone: bool
    ) -> Fault | None:
        """Ask once, or take the salvaged dump; check, and append."""
        rid = salvaged or self._new_rid(sample)
        try:
            tokens = open_block.tokens[sample]
            dump = await self._fetch(rid, tokens, salvaged=bool(salvaged), alone=alone)
        except RequestRefusedError as error:
            return Fault(FailureReason.REFUSED, str(error))
        except (DumpMissingError, CaptureFailedError, DumpError) as error:
            self._spool.discard(rid)
            return Fault(FailureReason.BAD_DATA, str(error))
        fault = await self._take(open_block, sample, rid, dump)
        if fault is not None:
            self._spool.discard(rid)
        return fault

    async def _fetch(
        self, rid: RequestId, tokens: npt.NDArray[np.int32], *, salvaged: bool, alone: bool
    ) -> Dump:
        if salvaged:
            return self._spool.open_dump(rid)
        self.stages.enter("queue", rid)
        try:
            async with self.flight.seat(alone=alone):
                await self._requester.wait_until_up()
                self.stages.leave("queue", rid)
                with self.stages.at("request", rid):
                    dump = await self._requester.fetch(rid, tokens)
        finally:
            self.stages.leave("queue", rid)
            self.stages.leave("answered", rid)
        self.flight.good()
        return dump

    async def _take(
        self, open_block: OpenBlock, sample: int, rid: RequestId, dump: Dump
    ) -> Fault | None:
        """Check a dump and append it, within the memory budget."""
        size = dump.layout.size_bytes
        with self.stages.at("memory", rid):
            await self._memory_budget.acquire(size)
        try:
            tokens, hasher = open_block.tokens[sample], PayloadHasher()
            with self.stages.at("check", rid):
                loop = asyncio.get_running_loop()
                fault = await loop.run_in_executor(
                    self._sink.checkers, self._find_fault, dump, tokens, hasher
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
        self.spool_budget.recheck()
        self._check_canary()
        return None

    def _check_canary(self) -> None:
        if self.canary is not None and self.canary.due(self.tokens_appended):
            check = self.canary.check(self.flight, self.spool_budget, self._sink.committed)
            self._group.create_task(check)

    def _find_fault(
        self, dump: Dump, tokens: npt.NDArray[np.int32], hasher: PayloadHasher
    ) -> Fault | None:
        spec = self._store.spec
        salvaged = dump.rid.run != self._run  # of an earlier start of the server, as it may be
        knows = None if salvaged else self._requester.knows
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
            self._give_back(open_block, sample)

    def _give_back(self, open_block: OpenBlock, sample: int) -> None:
        rid = open_block.held.pop(sample)
        self.stages.leave("give-back", rid)
        self._spool.give_back(rid)
        self._discharge(sample)

    def _relieve(self, missing_bytes: int) -> None:
        """Free spool memory: else a block that is larger than the spool could never be filled.

        Dumps of open blocks that are appended go first, oldest first: a SIGKILL now costs asking
        again for these samples, never more. Salvaged dumps go when nothing else can.
        """
        for open_block in self.open_blocks.values():
            for sample in list(open_block.held):
                if missing_bytes <= 0:
                    return
                missing_bytes -= self._charges[sample]
                self._give_back(open_block, sample)
        while missing_bytes > 0 and self._salvage and not self.flight.in_flight:
            sample, rid = self._salvage.popitem()
            missing_bytes -= self._charges[sample]
            self._spool.discard(rid)
            self._discharge(sample)

    async def _forsake(self, error: CanaryError) -> NoReturn:
        """Commit nothing more, and take back what was committed since the last good check."""
        for open_block in self.open_blocks.values():
            await self._sink.discard(open_block)
        suspect = self._sink.committed_samples[self.canary.good_committed if self.canary else 0 :]
        await self._sink.withdraw(suspect)
        told = f"{len(suspect)} samples committed since the last good check are pending again"
        raise CanaryError(f"{error}. {told}") from error

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
        open_block.failed[sample] = fault.reason
        self.failed_now += 1
        log.warning("sample %d failed (%s): %s", sample, fault.reason.label, fault.message)
        if not self._too_large(sample):  # else known before the start, and asked for
            self._failure_limit.bad(sample, fault)

    def _note_retry(self, sample: int, fault: Fault) -> None:
        self.retries += 1
        self.message = f"sample {sample} is asked for again: {fault.message}"
        log.info(self.message)

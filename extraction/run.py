"""The steps of one extraction run, from options to result.

::

    read data -> wait for the server -> preflight -> handshake -> create the store
              -> claim its spans -> salvage -> handshake -> extract -> give the claims back
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

import numpy as np
import psutil

from extraction.access import read_access
from extraction.block_sink import BlockSink
from extraction.canary import MEMORY_SHARE, Canary, plan_canary
from extraction.dataset import load_dataset, tokenizer_hash
from extraction.handshake import (
    GOLDEN_ROWS,
    Handshake,
    model_of,
    norm_weight_of,
    refuse_other_golden,
)
from extraction.pipeline import Pipeline
from extraction.preflight import free_space, preflight
from extraction.run_record import begin_record
from extraction.salvage import salvage
from extraction.server_link import ServerLink
from extraction.server_wait import refuse_router, relay_warnings, wait_for_server
from extraction.session import Session, open_session
from extraction.spool import SpoolView
from hsstore.activity import tick
from hsstore.claims import Claims
from hsstore.codec import USUAL_RATIOS, usual_ratio
from hsstore.create import LayoutOptions, create_store, layout_for
from hsstore.errors import HsstoreError, InputError, OutputError, RefusedError
from hsstore.run_record import end_record
from hsstore.spec import BROKEN, FINISHED, INTERRUPTED, CanaryRecord, RunRecord
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from extraction.options import ExtractOptions
    from extraction.requester import Requester
    from extraction.spool import ServerInfo
    from hsstore.create import Golden
    from hsstore.dataset import TokenizedDataset
    from hsstore.layout import Layout
    from hsstore.spec import Model

log = logging.getLogger(__name__)

SPREAD_TOKENS = 256
"""Tokens that the handshake's small requests are cut from, at most."""
HANDSHAKE_STORE = "new"
"""Stands for the store's uuid in the dump that comes before the store."""


class Run:
    """One run over one store.

    Parameters
    ----------
    report : callable
        Takes fields of `RunStatus` that changed.
    """

    def __init__(self, options: ExtractOptions, report: Callable[..., None]) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.pipeline: Pipeline | None = None
        self.sink: BlockSink | None = None
        self._options = options
        self._report = report
        self._created = False
        self._requester: Requester | None = None
        self._canary: Canary | CanaryRecord = CanaryRecord(verdict="off")

    @property
    def in_flight(self) -> int:
        """Requests under way, those of the handshake and of the canary included."""
        asked = self._requester.in_flight if self._requester else 0
        return max(asked, self.pipeline.flight.in_flight if self.pipeline else 0)

    async def execute(self) -> tuple[str, int]:
        """Do everything that is to do; return what to tell, and the exit code.

        Raises
        ------
        HsstoreError
        """
        store, dataset = await asyncio.to_thread(self._prepare)
        if store is not None and await asyncio.to_thread(self._is_filled, store):
            await asyncio.to_thread(self._report_plan, store)
            return await asyncio.to_thread(self._result, store)
        self._report(phase="waiting for server")
        log.info(
            "server %s, spool %s: waiting up to %.0f s",
            self._options.server,
            self._options.spool,
            self._options.server_wait_seconds,
        )
        async with await asyncio.to_thread(self._link) as link:
            info = await wait_for_server(
                link, self._options.spool, self._options.server_wait_seconds
            )
            relay_warnings(info)
            budget = await asyncio.to_thread(self._preflight, store, dataset, info)
            if self._options.dry_run:
                return "dry run: this can work; nothing was written", 0
            if store is None:
                store = await self._create(link, dataset, info)
            dataset = None  # it may be large, and the store has all of it
            claims = await asyncio.to_thread(
                Claims, store, self.id, take_over=self._options.take_over
            )
            try:
                await self._extract(store, claims, link, info, budget)
            finally:
                await asyncio.to_thread(claims.release)
        return await asyncio.to_thread(self._result, store)

    def _link(self) -> ServerLink:
        options = self._options
        access = read_access(options.api_key_file, options.ca_cert)
        return ServerLink(options.server, options.max_in_flight, access)

    # --- before the first request -------------------------------------------------------------

    def _prepare(self) -> tuple[Store | None, TokenizedDataset | None]:
        """Open the store if it is there, and read the data if it is given."""
        options = self._options
        self._report(store_real=os.path.realpath(options.store))
        store = Store.open(options.store) if options.store.exists() else None
        if store is None and not options.data.files:
            raise InputError(
                f"{options.store} does not exist: give --data and --model to create it"
            )
        dataset = self._load_dataset() if options.data.files else None
        if store is not None and dataset is not None:
            store.spec.refuse_other_dataset(dataset.fingerprint())
        return store, dataset

    def _load_dataset(self) -> TokenizedDataset:
        self._report(phase="reading data")
        data = self._options.data
        dataset, report = load_dataset(data.files, self._options.model, data, lambda _: tick())
        log.info("data: %s", report.summary())
        for message in [example for examples in report.examples.values() for example in examples]:
            log.warning("dropped: %s", message)
        return dataset

    def _is_filled(self, store: Store) -> bool:
        completion = store.completion()
        retry = self._options.retry_failed and bool(completion.failed.any())
        return not retry and not completion.pending.any()

    def _preflight(
        self, store: Store | None, dataset: TokenizedDataset | None, info: ServerInfo
    ) -> int:
        """Refuse a run that cannot work, with numbers; return the spool budget in bytes."""
        if store is not None:
            store.spec.refuse_other_model(model_of(info))
        layout, length, pending = self._plan(store, dataset, info)
        report = preflight(
            layout,
            length,
            pending,
            space=free_space(self._options.store),
            spool_budget_bytes=self._spool_budget(SpoolView(self._options.spool)),
            memory_bytes=self._options.memory_bytes,
            memory_free_bytes=psutil.virtual_memory().available,
            skip_too_large=self._options.skip_too_large,
            usual_ratio=self._usual_ratio(store),
        )
        for line in report.lines():
            log.info(line)
        report.refuse_problems()
        return report.spool_budget_bytes

    def _plan(
        self, store: Store | None, dataset: TokenizedDataset | None, info: ServerInfo
    ) -> tuple[Layout, npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        if store is not None:
            completion = store.completion()
            pending = ~completion.complete if self._options.retry_failed else completion.pending
            return store.layout, store.length, pending
        if dataset is None:
            raise InputError("a new store needs data")
        layout = layout_for(dataset.length, model_of(info), self._layout_options())
        return layout, dataset.length.astype(np.int32), np.ones(len(dataset), dtype=np.bool_)

    def _spool_budget(self, spool: SpoolView) -> int:
        """Return what may be used: at most what is free, or held by files that are ours to use."""
        available = spool.headroom_bytes() + spool.scan().allocated_bytes
        return min(self._options.spool_budget_bytes or available // 2, available)

    def _usual_ratio(self, store: Store | None) -> float:
        if store is not None:
            return usual_ratio(store.spec.codec)
        return USUAL_RATIOS[self._options.codec]

    def _layout_options(self) -> LayoutOptions:
        options = self._options
        return LayoutOptions(
            options.chunk_rows, options.shard_rows, options.span_samples, options.codec
        )

    # --- creation -----------------------------------------------------------------------------

    async def _create(
        self, link: ServerLink, dataset: TokenizedDataset | None, info: ServerInfo
    ) -> Store:
        if dataset is None:
            raise InputError("a new store needs data")
        tokens = dataset.input_ids[: min(GOLDEN_ROWS, int(dataset.length[0]))]
        async with self._session(link, HANDSHAKE_STORE, info) as session:
            hand = await self._handshake(session, model_of(info), HANDSHAKE_STORE, len(dataset))
            await refuse_router(link)
            golden = await hand.golden(tokens, 0)
            await hand.refuse_spread(dataset.input_ids[:SPREAD_TOKENS])
        self._created = True
        self._report(phase="creating the store")
        return await asyncio.to_thread(self._create_in_thread, dataset, info, golden)

    def _create_in_thread(
        self, dataset: TokenizedDataset, info: ServerInfo, golden: Golden
    ) -> Store:
        model_dir = self._options.model
        return create_store(
            self._options.store,
            dataset,
            model_of(info),
            norm_weight=norm_weight_of(info),
            tokenizer_hash=tokenizer_hash(model_dir) if model_dir else None,
            options=self._layout_options(),
            golden=golden,
        )

    # --- extraction ---------------------------------------------------------------------------

    async def _extract(
        self, store: Store, claims: Claims, link: ServerLink, info: ServerInfo, budget: int
    ) -> None:
        await asyncio.to_thread(self._own, store, claims)
        sink = self.sink = BlockSink(store, claims, self.id, len(os.sched_getaffinity(0)))
        try:
            async with self._session(link, store.spec.store, info) as session:
                pending = (await asyncio.to_thread(store.completion)).pending
                found = await asyncio.to_thread(
                    salvage, session.spool, self.id, store.spec, pending
                )
                golden = await self._golden(session, link, store, info)
                record = begin_record(self.id, info, self._options)
                await asyncio.to_thread(store.record_run, record, golden.bits)
                self.pipeline = self._pipeline(store, session, sink, info, budget)
                self.pipeline.adopt(found)
                await asyncio.to_thread(self._report_plan, store)
                self._report(phase="extracting")
                self._canary = await asyncio.to_thread(
                    self._make_canary, store, self.pipeline, session, link, info
                )
                await self._run_pipeline(store, self.pipeline, record)
        finally:
            sink.close()

    def _own(self, store: Store, claims: Claims) -> None:
        """Claim every span that has something to do, and make failed samples pending if asked."""
        completion = store.completion()
        todo = ~completion.complete if self._options.retry_failed else completion.pending
        claims.take(np.unique(np.flatnonzero(todo) // store.spec.layout.span_samples).tolist())
        if self._options.retry_failed:
            store.reset_failed(np.flatnonzero(completion.failed))

    async def _golden(
        self, session: Session, link: ServerLink, store: Store, info: ServerInfo
    ) -> Golden:
        """Shake hands, and compare the golden states with the store's."""
        prefix = store.spec.golden_input_ids
        if not prefix:
            tokens = (await asyncio.to_thread(store.input_ids, 0))[:GOLDEN_ROWS]
        else:
            tokens = np.array(prefix, dtype=np.int32)
        hand = await self._handshake(session, model_of(info), store.spec.store, len(store))
        golden = await hand.golden(tokens, 1)
        if not self._created:
            await refuse_router(link)
            await hand.refuse_spread(tokens)
        if prefix:
            expected = await asyncio.to_thread(store.plan_array, "golden")
            refuse_other_golden(expected, golden.bits.view(expected.dtype))
        return golden

    def _pipeline(
        self, store: Store, session: Session, sink: BlockSink, info: ServerInfo, budget: int
    ) -> Pipeline:
        return Pipeline(
            store, self._options, self.id, info, session.spool, session.requester, sink, budget
        )

    async def _run_pipeline(self, store: Store, pipeline: Pipeline, record: RunRecord) -> None:
        result = BROKEN
        try:
            if isinstance(self._canary, Canary):
                await self._canary.before()
                pipeline.canary = self._canary
            await pipeline.run()
            result = FINISHED
        except asyncio.CancelledError:
            result = INTERRUPTED
            raise
        except HsstoreError as error:
            result = str(error)
            raise
        finally:
            found = self._canary
            ended = end_record(record, result, found.record if isinstance(found, Canary) else found)
            with suppress(OutputError):  # the disk has said so already
                await asyncio.to_thread(store.record_run, ended)

    def _make_canary(
        self,
        store: Store,
        pipeline: Pipeline,
        session: Session,
        link: ServerLink,
        info: ServerInfo,
    ) -> Canary | CanaryRecord:
        """Return the canary, or why there is none."""
        options = self._options
        if info.isolated or not options.canary:
            return CanaryRecord(verdict="isolated" if info.isolated else "off")
        budget = pipeline.spool_budget
        plan = plan_canary(
            store,
            store.completion().pending,
            min(options.memory_bytes // MEMORY_SHARE, budget.limit_bytes - budget.used_bytes),
            max_in_flight=options.max_in_flight,
            pause_seconds=options.canary_pause_seconds,
        )
        return Canary(plan, store, self.id, info, link, session.spool, session.requester)

    async def _handshake(
        self, session: Session, model: Model, store: str, samples: int
    ) -> Handshake:
        """Wait until the server is healthy, and make ready to ask it."""
        self._requester = session.requester
        self._report(phase="waiting for server")
        await self._requester.wait_until_up()
        self._report(phase="handshake")
        return Handshake(self._requester, session.spool, model, self.id, store, samples)

    @staticmethod
    def _same_server(before: ServerInfo, now: ServerInfo) -> None:
        if now.capture_hash != before.capture_hash:
            raise RefusedError("the server came back with another model; nothing of it was used")

    def _session(
        self, link: ServerLink, store_uuid: str, info: ServerInfo
    ) -> AbstractAsyncContextManager[Session]:
        return open_session(
            self._options, link, self.id, store_uuid, lambda now: self._same_server(info, now)
        )

    # --- reports ------------------------------------------------------------------------------

    def _report_plan(self, store: Store) -> None:
        completion = store.completion()
        self._report(
            samples=len(store),
            complete=int(completion.complete.sum()),
            failed=int((completion.failed > 0).sum()),
            tokens_pending=int(store.length[completion.pending].sum(dtype=np.int64)),
        )

    def _result(self, store: Store) -> tuple[str, int]:
        completion = store.completion()
        failed = completion.failed[completion.failed > 0]
        complete = int(completion.complete.sum())
        if not failed.size:
            return f"complete: all {complete} samples are in {store.path}", 0
        reasons = [
            f"{count} {store.spec.failure_label(int(reason))}"
            for reason, count in zip(*np.unique(failed, return_counts=True), strict=True)
        ]
        message = (
            f"finished: {complete} samples are in {store.path}, {len(failed)} failed "
            f"({', '.join(reasons)}); --retry-failed asks for them again"
        )
        return message, 1

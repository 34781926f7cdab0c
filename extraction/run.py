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
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import psutil

from extraction.access import read_access
from extraction.addresses import Servers
from extraction.block_sink import BlockSink
from extraction.contact import Failures, first_contact
from extraction.dataset import load_dataset, tokenizer_hash
from extraction.fleet import Fleet
from extraction.handshake import (
    GOLDEN_ROWS,
    HANDSHAKE_ATTEMPTS,
    Handshake,
    model_of,
    norm_weight_of,
    refuse_other_server,
)
from extraction.lane import Setting, link_to, spool_budgets
from extraction.pipeline import Pipeline
from extraction.preflight import free_space, preflight
from extraction.run_record import begin_record
from extraction.server_wait import refuse_router
from extraction.session import open_session
from extraction.shared_work import open_claims, open_work
from extraction.staging import is_there, open_stage, places, staged_shard_bytes, where_bytes_go
from extraction.status import SHOWN_CHARACTERS, ServerState
from hsstore.activity import tick
from hsstore.codec import USUAL_RATIOS, usual_ratio
from hsstore.create import LayoutOptions, create_store, layout_for
from hsstore.errors import (
    HsstoreError,
    InputError,
    InterruptedRunError,
    RefusedError,
)
from hsstore.run_record import end_record
from hsstore.spec import BROKEN, FINISHED, INTERRUPTED, RunRecord
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from extraction.addresses import ServerAddress
    from extraction.options import ExtractOptions
    from extraction.requester import Requester
    from extraction.spool import ServerInfo
    from hsstore.claims import Claims
    from hsstore.create import Golden
    from hsstore.dataset import TokenizedDataset
    from hsstore.layout import Layout

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
    say : callable
        Returns all of it, in JSON.
    """

    def __init__(
        self, options: ExtractOptions, report: Callable[..., None], say: Callable[[], bytes]
    ) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.pipeline: Pipeline | None = None
        self.sink: BlockSink | None = None
        self.fleet: Fleet | None = None
        self._options = options
        self._report = report
        self._say = say
        self._servers = Servers(options.named_servers, options.servers_file)
        self._failed: Failures = {}
        self._handshakes = count()
        self._created_with = ""
        self._asked: tuple[ServerAddress, Requester] | None = None
        """Who is asked before there is a store."""
        self._stage: Path | None = None

    @property
    def servers(self) -> tuple[ServerState, ...]:
        """All servers, as the run sees them now."""
        if self.fleet is not None:
            return tuple(member.show() for member in self.fleet.members)
        return tuple(map(self._show, self._servers.last))

    def _show(self, address: ServerAddress) -> ServerState:
        """Describe a server to which the run has no lane yet."""
        error = self._failed.get(address)
        asked, requester = self._asked or (None, None)
        return ServerState(
            url=address.url,
            spool=str(address.spool),
            state="dropped" if isinstance(error, RefusedError) else "waiting",
            in_flight=requester.in_flight if requester and asked == address else 0,
            message=str(error or "")[:SHOWN_CHARACTERS],
        )

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
        options = self._options
        self._access = await asyncio.to_thread(
            read_access, options.api_key_file, options.ca_cert, options.relay_token_file
        )
        async with self._access.mirrors, open_stage(options, self.id) as self._stage:
            store = await self._fill(store, dataset)
        if store is None:
            return "dry run: this can work; nothing was written", 0
        return await asyncio.to_thread(self._result, store)

    async def _fill(self, store: Store | None, dataset: TokenizedDataset | None) -> Store | None:
        """Create the store where there is none, and extract; return it, but None in a dry run."""
        options = self._options
        address, info = await self._first_contact(store, dataset)
        if options.dry_run:
            return None
        while store is None:
            if dataset is None:
                raise InputError("a new store needs data")
            try:
                golden = await self._first_handshake(address, dataset, info)
            except (RefusedError, InterruptedRunError) as error:
                if len(self._servers.last) > 1:
                    log.warning("server %s is not used: %s", address.url, error)
                self._failed[address] = error
                address, info = await self._first_contact(store, dataset)
            else:
                self._report(phase="creating the store")
                store = await asyncio.to_thread(self._create, dataset, info, golden)
        dataset = None  # it may be large, and the store has all of it
        claims = await asyncio.to_thread(open_claims, store, self.id, options, self._say)
        try:
            await self._extract(store, claims)
        finally:
            await asyncio.to_thread(claims.release)
        return store

    async def _first_contact(
        self, store: Store | None, dataset: TokenizedDataset | None
    ) -> tuple[ServerAddress, ServerInfo]:
        """Wait for a server whose model is the store's, if there is one; refuse what cannot work."""

        def check(info: ServerInfo) -> None:
            model = model_of(info)
            if store is not None:
                store.spec.refuse_other_model(model)

        servers, options = self._servers, self._options
        found = await first_contact(servers, options, self._access, self._failed, check)
        await asyncio.to_thread(self._preflight, store, dataset, found[1])
        return found

    # --- before the first request -------------------------------------------------------------

    def _prepare(self) -> tuple[Store | None, TokenizedDataset | None]:
        """Open the store if it is there, and read the data if it is given."""
        options = self._options
        self._report(**places(options))
        store = Store.open(options.store) if is_there(options.store) else None
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
    ) -> None:
        """Refuse a run that cannot work, with numbers."""
        layout, length, pending = self._plan(store, dataset, info)
        hoped_for = [one for one in self._servers.last if self._show(one).hoped_for]
        budgets = spool_budgets(hoped_for, self._options.spool_budget_bytes)
        report = preflight(
            layout,
            length,
            pending,
            space=free_space(where_bytes_go(self._options.store, self._options.stage)),
            staged_shard_bytes=staged_shard_bytes(self._options.store),
            spool_budget_bytes=max(budgets, default=0),
            all_spools_bytes=sum(budgets),
            memory_bytes=self._options.memory_bytes,
            memory_free_bytes=psutil.virtual_memory().available,
            skip_too_large=self._options.skip_too_large,
            usual_ratio=self._usual_ratio(store),
        )
        for line in report.lines():
            log.info(line)
        report.refuse_problems()

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

    def _usual_ratio(self, store: Store | None) -> float:
        return USUAL_RATIOS[self._options.codec] if store is None else usual_ratio(store.spec.codec)

    def _layout_options(self) -> LayoutOptions:
        options = self._options
        return LayoutOptions(
            options.chunk_rows, options.shard_rows, options.span_samples, options.codec
        )

    # --- creation -----------------------------------------------------------------------------

    async def _first_handshake(
        self, address: ServerAddress, dataset: TokenizedDataset, info: ServerInfo
    ) -> Golden:
        """Have a server prove itself, and return the golden states of a new store."""
        tokens = dataset.input_ids[: min(GOLDEN_ROWS, int(dataset.length[0]))]
        model, options = model_of(info), self._options
        attempt = HANDSHAKE_ATTEMPTS * next(self._handshakes)

        async with (
            link_to(address, options, self._access) as link,
            open_session(
                options,
                address.spool,
                link,
                self.id,
                HANDSHAKE_STORE,
                partial(refuse_other_server, info),
            ) as session,
        ):
            self._asked = address, session.requester
            self._report(phase="waiting for server")
            await session.requester.wait_until_up()
            self._report(phase="handshake")
            hand = Handshake(
                session.requester, session.spool, model, self.id, HANDSHAKE_STORE, len(dataset)
            )
            await refuse_router(link)
            golden = await hand.golden(tokens, attempt)
            await hand.refuse_spread(dataset.input_ids[:SPREAD_TOKENS], attempt)
        self._created_with = link.url
        return golden

    def _create(self, dataset: TokenizedDataset, info: ServerInfo, golden: Golden) -> Store:
        model_dir = self._options.model
        return create_store(
            self._options.store,
            dataset,
            model_of(info),
            norm_weight=norm_weight_of(info),
            tokenizer_hash=tokenizer_hash(model_dir) if model_dir else None,
            options=self._layout_options(),
            golden=golden,
            stage=self._stage,
        )

    # --- extraction ---------------------------------------------------------------------------

    async def _extract(self, store: Store, claims: Claims) -> None:
        work = open_work(store, claims, self._options, self._report)
        await asyncio.to_thread(work.prepare)
        threads = len(os.sched_getaffinity(0))
        sink = self.sink = BlockSink(store, claims, self.id, threads, self._stage)
        setting = Setting(
            store,
            self._options,
            self.id,
            self._access,
            self._say_phase,
            self._created_with,
            self._handshakes,
        )
        try:
            async with Fleet(setting, self._servers, self._failed) as fleet:
                self.fleet = fleet
                first = await fleet.first()
                record = begin_record(self.id, first.info, self._options, fleet.records())
                await asyncio.to_thread(store.record_run, record, first.golden.bits)
                self.pipeline = Pipeline(store, self._options, self.id, fleet, sink, work)
                await asyncio.to_thread(self._report_plan, store)
                self._report(phase="extracting")
                await self._run_pipeline(store, self.pipeline, record)
        finally:
            sink.close()

    def _say_phase(self, phase: str) -> None:
        """Tell what the first lane does; later ones open while the run goes on."""
        if self.pipeline is None:
            self._report(phase=phase)

    async def _run_pipeline(self, store: Store, pipeline: Pipeline, record: RunRecord) -> None:
        result = BROKEN
        try:
            await pipeline.fleet.begin()
            await pipeline.run()
            result = FINISHED
        except asyncio.CancelledError:
            result = INTERRUPTED
            raise
        except HsstoreError as error:
            result = str(error)
            raise
        finally:
            servers = pipeline.fleet.records()
            ended = end_record(record, result, pipeline.fleet.canary)
            ended = ended.model_copy(update={"servers": servers})
            with suppress(HsstoreError):  # no other error than the one that ended the run
                await asyncio.to_thread(store.record_run, ended)

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
        if pending := int(completion.pending.sum()):
            raise InterruptedRunError(
                f"{pending:,} samples are pending again: another worker retries what has failed, or has "
                "taken back what was wrong. Run the same command again"
            )
        failed = completion.failed[completion.failed > 0]
        complete = int(completion.complete.sum())
        if not failed.size:
            return f"complete: all {complete} samples are in {store.location}", 0
        reasons = [
            f"{count} {store.spec.failure_label(int(reason))}"
            for reason, count in zip(*np.unique(failed, return_counts=True), strict=True)
        ]
        message = (
            f"finished: {complete} samples are in {store.location}, {len(failed)} failed "
            f"({', '.join(reasons)}); --retry-failed asks for them again"
        )
        return message, 1

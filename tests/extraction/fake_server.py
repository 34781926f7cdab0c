"""A server that goes wrong on demand: the same HTTP, the real spool, and faults by sample.

It computes no model: its states are noise that follows from the tokens.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from aiohttp import web

from extraction.spool import (
    DumpLayout,
    DumpMetadata,
    ErrorReason,
    RequestId,
    SpoolServer,
)
from tests.extraction.fake_model import ODD_DUMPS, Fault, fake_info, fake_states, spoil

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import numpy.typing as npt

    from extraction.spool import ServerInfo

LATE_SECONDS = 7.0
"""Between an answer and its late dump."""


BatchFault: TypeAlias = "Callable[[npt.NDArray[np.uint16]], None]"


class FakeServer:
    """The application and its spool.

    Attributes
    ----------
    faults : dict
        By sample: what goes wrong with its requests, one after the other; then nothing does.
    always : dict
        By sample: what goes wrong with every request.
    requests : list
        What was asked for, handshakes left out.
    """

    def __init__(self, spool: SpoolServer, samples: int) -> None:
        self.faults: defaultdict[int, list[Fault]] = defaultdict(list)
        self.always: dict[int, Fault] = {}
        self.requests: list[RequestId] = []
        self.captured: list[RequestId] = []
        """Those whose dumps are whole: one whose client goes away before is not computed."""
        self.at_once = 0
        """Requests that are not answered."""
        self.most_at_once = 0
        self.url = ""
        self.spool = spool
        self.key = ""
        """API key, if it wants one."""
        self.offset = 0.0
        """Added to all states: another model."""
        self.hold: asyncio.Event | None = None
        """While set and not fired, no request of a sample is answered."""
        self.held: set[int] | None = None
        """The samples that `hold` is about; None: all."""
        self.health_status = 200
        self.health_headers: dict[str, str] = {}
        self.lists: dict[str, Any] = {}
        """Answers to GET by path, as a router would give them."""
        self.queue_depth = 0
        """What the heartbeat says."""
        self.batch_fault: BatchFault | None = None
        """Changes the states of what is computed while other requests are in flight."""
        self.noise: BatchFault | None = None
        """Changes all states."""
        self.refuse_beyond = False
        """Refuse what is asked for no sample: handshakes and canaries."""
        self.batching_seconds = 0.0
        """Time for others to come before a request is computed."""
        self._runner: web.AppRunner | None = None
        self._samples = samples
        self._computing = 0
        self._crowd = 0
        self._forwards = 0
        self._hung = asyncio.Event()
        self._came = asyncio.Condition()

    @property
    def info(self) -> ServerInfo:
        """What `server.json` says."""
        assert self.spool._info is not None
        return self.spool._info

    def attempts(self, sample: int) -> int:
        """Count the requests for a sample."""
        return sum(rid.sample == sample for rid in self.requests)

    def become(self, **changes: Any) -> None:
        """Break all connections once, and be another server from then on."""
        info = replace(self.info, **changes)
        self.spool.announce(info)
        self.always = dict.fromkeys(range(self._samples), Fault.RESET)

    async def leave(self) -> None:
        """Stop answering for good; the spool stays."""
        assert self._runner is not None
        await self._runner.cleanup()

    def application(self) -> web.Application:
        """Build the HTTP side."""
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._ok)
        app.router.add_get("/health", self._health)
        for path in self.lists:
            app.router.add_get(path, self._list)
        return app

    async def _list(self, http: web.Request) -> web.Response:
        return web.json_response(self.lists[http.path])

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.health_status, headers=self.health_headers)

    async def _ok(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _generate(self, http: web.Request) -> web.Response:
        if self.key and http.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "Unauthorized"}}, status=401)
        body = await http.json()
        rid = RequestId.parse(body["rid"])
        if rid is None:  # not of our protocol: computed, and not captured
            await self._compute()
            return web.json_response({"text": "", "meta_info": {"id": body["rid"]}})
        assert body["extra_key"] == str(rid)
        assert body["sampling_params"]["max_new_tokens"] == 0
        fault = self._next_fault(rid)
        async with self._came:
            self._came.notify_all()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.hold is not None and self._is_held(rid.sample):
                await self.hold.wait()
            return await self._answer(http, rid, np.array(body["input_ids"], np.int32), fault)
        finally:
            self.at_once -= 1
            self._forwards += 1
            self.spool.beat(forwards=self._forwards, queue_depth=self.queue_depth)

    def _is_held(self, sample: int) -> bool:
        return sample < self._samples if self.held is None else sample in self.held

    def _next_fault(self, rid: RequestId) -> Fault | None:
        if rid.sample < self._samples:
            self.requests.append(rid)
        elif self.refuse_beyond:
            return Fault.BAD_REQUEST
        queue = self.faults[rid.sample]
        return queue.pop(0) if queue else self.always.get(rid.sample)

    async def _answer(
        self, http: web.Request, rid: RequestId, ids: npt.NDArray[np.int32], fault: Fault | None
    ) -> web.Response:
        if fault in {Fault.ABORTED, Fault.ABORTED_IN_CAPTURE}:
            return await self._abort(rid, in_capture=fault is Fault.ABORTED_IN_CAPTURE)
        if fault is Fault.BAD_REQUEST:
            return web.json_response({"error": {"message": "too odd"}}, status=400)
        if fault is Fault.SERVER_ERROR:
            return web.json_response({"error": {"message": "out of luck"}}, status=500)
        if fault in {Fault.ENGINE_THEN_500, Fault.ENGINE_AFTER_500}:
            return await self._break_down(rid, reason_first=fault is Fault.ENGINE_THEN_500)
        if fault is Fault.RESET:
            assert http.transport is not None
            http.transport.abort()
            return web.Response()
        return await self._capture_and_answer(rid, ids, fault)

    async def _capture_and_answer(
        self, rid: RequestId, ids: npt.NDArray[np.int32], fault: Fault | None
    ) -> web.Response:
        others = await self._compute()
        if fault is Fault.LATE_DUMP:
            loop = asyncio.get_running_loop()
            loop.call_later(LATE_SECONDS, lambda: self._capture(rid, ids, None, in_batch=False))
        elif fault is not Fault.NO_DUMP:
            self._capture(rid, ids, fault, in_batch=others)
        if fault is Fault.NO_ANSWER:
            await self._hung.wait()
        return web.json_response({"text": "", "meta_info": {"id": str(rid)}})

    async def _break_down(self, rid: RequestId, *, reason_first: bool) -> web.Response:
        """Say over HTTP and in the spool that the engine failed, one well after the other."""

        def say() -> None:
            self.spool.fail(str(rid), ErrorReason.ENGINE, "out of memory")

        if reason_first:
            say()
            await asyncio.sleep(0.1)
        else:
            asyncio.get_running_loop().call_later(0.1, say)
        return web.json_response({"error": {"message": "out of memory"}}, status=500)

    async def _abort(self, rid: RequestId, *, in_capture: bool) -> web.Response:
        """Answer as SGLang does when somebody else has it abort this request."""
        if in_capture:
            self.spool.fail(str(rid), ErrorReason.INCOMPLETE, "it ended early")
            await asyncio.sleep(0.1)
        reason = {"type": "abort", "message": "Abort in waiting queue"}
        return web.json_response(
            {"text": "", "meta_info": {"id": str(rid), "finish_reason": reason}}
        )

    async def _compute(self) -> bool:
        """Take the time that a forward takes; tell whether others were computed along."""
        self._computing += 1
        self._crowd = max(self._crowd, self._computing)
        await asyncio.sleep(self.batching_seconds)
        crowded = self._crowd > 1
        self._computing -= 1
        self._crowd = self._crowd if self._computing else 0
        return crowded

    async def wait_for_requests(self, count: int) -> None:
        """Wait until so many have come."""
        async with asyncio.timeout(60), self._came:
            await self._came.wait_for(lambda: len(self.requests) >= count)

    def _capture(
        self, rid: RequestId, ids: npt.NDArray[np.int32], fault: Fault | None, *, in_batch: bool
    ) -> None:
        states = fake_states(ids, self.info, self.offset)
        if self.noise is not None:
            self.noise(states)
        if in_batch and self.batch_fault is not None:
            self.batch_fault(states)
        if fault in {Fault.OVERRUN, Fault.FULL, Fault.ENGINE}:
            self.spool.fail(str(rid), ErrorReason[fault.name], "on demand")
        elif fault in ODD_DUMPS:
            self._write_odd_dump(rid, ids, states, fault)
        else:
            ids, states = ids.copy(), states.copy()
            spoil(ids, states, fault)
            half = len(ids) // 2
            for start, part in ((half, slice(half, None)), (0, slice(half))):  # not in order
                self.spool.put(str(rid), start, states[part], ids[part])
            self.captured.append(rid)

    def _write_odd_dump(
        self,
        rid: RequestId,
        ids: npt.NDArray[np.int32],
        states: npt.NDArray[np.uint16],
        fault: Fault,
    ) -> None:
        """Leave a dump that no sound server would."""
        layout = DumpLayout(len(ids), self.info.slots, self.info.hidden, self.info.dtype)
        if fault is Fault.TRUNCATED:
            self._write_dump(rid, layout, ids, states, missing_bytes=1)
        elif fault is Fault.WRONG_DTYPE:
            self._write_dump(rid, replace(layout, dtype="float16"), ids, states)
        elif fault is Fault.WRONG_SHAPE:
            wider = np.concatenate([states, states[:, :1]], axis=1)
            self._write_dump(rid, replace(layout, slots=layout.slots + 1), ids, wider)
        elif fault is Fault.OTHER_STORE:
            self._write_dump(rid, layout, ids, states, store="another")
        elif fault is Fault.OTHER_INSTANCE:
            self._write_dump(rid, layout, ids, states, instance="another start")
        else:
            self._write_dump(rid, layout, ids, states, capture_hash="0" * 64)

    def leave_dumps(self, store: str, tokens: dict[int, npt.NDArray[np.int32]]) -> None:
        """Leave dumps in the spool as if a run had asked for them and then died."""
        for sample, ids in tokens.items():
            layout = DumpLayout(len(ids), self.info.slots, self.info.hidden, self.info.dtype)
            rid = RequestId("dead", sample, 1, len(ids))
            states = fake_states(ids, self.info)
            self._write_dump(rid, layout, ids, states, store=store, instance="an earlier start")

    def _write_dump(
        self,
        rid: RequestId,
        layout: DumpLayout,
        ids: npt.NDArray[np.int32],
        states: npt.NDArray[np.uint16],
        *,
        missing_bytes: int = 0,
        **metadata: str,
    ) -> None:
        client = self.spool._registered_client()
        store = client.store if client else ""
        usual = DumpMetadata(str(rid), self.info.instance, self.info.capture_hash, store)
        header = layout.header(replace(usual, **metadata))
        content = header + ids.astype("<i4").tobytes() + states.tobytes()
        assert len(content) == layout.size_bytes
        kept = content[: len(content) - missing_bytes]
        self.spool.directory.write(self.spool.directory.finished(rid), kept)


@asynccontextmanager
async def serve_fake(
    spool: Path,
    samples: int,
    *,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    lists: dict[str, Any] | None = None,
    announced: bool = True,
    **changes: Any,
) -> AsyncIterator[FakeServer]:
    """Serve for a store of so many samples; `changes` are fields of its `ServerInfo`."""
    with SpoolServer(spool) as spool_server:
        fake = FakeServer(spool_server, samples)
        fake.lists = lists or {}
        runner = web.AppRunner(
            fake.application(), shutdown_timeout=0.1, handler_cancellation=True, access_log=None
        )
        await runner.setup()
        fake._runner = runner
        try:
            site = web.TCPSite(runner, host, 0, ssl_context=tls)
            await site.start()
            name = f"[{host}]" if ":" in host else host
            fake.url = f"http{'s' if tls else ''}://{name}:{runner.addresses[0][1]}"
            if announced:
                spool_server.announce(replace(fake_info(spool_server, fake.url), **changes))
            yield fake
        finally:
            await runner.cleanup()

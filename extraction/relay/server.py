"""The relay: an aiohttp application in front of one spool. See the package for its protocol.

Dumps go from the page cache into the socket (sendfile); nothing of them is read into memory but by
the thread that takes their digest, through a mapping.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import mmap
import os
import re
import socket
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import xxhash
from aiohttp import web

from extraction.relay.protocol import (
    LONGEST_WAIT_SECONDS,
    SESSION_HEADER,
    VERSION,
    VERSION_HEADER,
    Kind,
    RefusalError,
)
from extraction.spool import ClientInfo, RequestId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path
    from typing import BinaryIO

    from extraction.relay.held_spool import HeldSpool
    from extraction.relay.protocol import Listing

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)

EXPIRE_SECONDS: Final = 0.5
DEAD_LINE_SECONDS: Final = 60.0
"""A connection that takes nothing for so long is given up."""
LOOK_SECONDS: Final = 0.05
"""Between two looks whether anything has changed in the spool, while a client waits for that."""
_LARGEST_BODY_BYTES: Final = 8 << 20
_LONGEST_NAME: Final = 128
"""Of a store: it goes into the header of each dump, where there is only so much room."""
_REMEMBERED_DIGESTS: Final = 4096


class Relay:
    """The handlers of one relay.

    Parameters
    ----------
    token
        What clients have to show; empty: nothing, for loopback only.
    max_connections
        Requests at once; more are told to come back later.
    """

    def __init__(self, spool: HeldSpool, token: str, max_connections: int) -> None:
        self._spool = spool
        self._expected = f"Bearer {token}".encode() if token else b""
        self._max_connections = max_connections
        self._active = 0
        self._digests: OrderedDict[RequestId, asyncio.Task[tuple[int, str]]] = OrderedDict()

    def application(self) -> web.Application:
        """Build the application."""
        app = web.Application(middlewares=[self._answer], client_max_size=_LARGEST_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/session", self._open)
        app.router.add_delete("/v1/session", self._leave)
        app.router.add_get("/v1/spool", self._listing)
        app.router.add_get("/v1/server", self._server)
        app.router.add_get("/v1/dumps/{rid}", self._dump)
        app.router.add_get("/v1/dumps/{rid}/digest", self._digest)
        app.router.add_post("/v1/release", self._release)
        app.cleanup_ctx.append(self._tidying)
        return app

    # --- handlers -----------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _open(self, request: web.Request) -> web.Response:
        body = await _read_json(request)
        try:
            client = ClientInfo(str(body["run"]), str(body["store"]))
            RequestId(client.run, 0, 0, 1)  # its token is one
        except (KeyError, ValueError) as error:
            raise _bad(f"a session needs a run ([a-z0-9], up to 32) and a store: {error}") from None
        session = _session(request)
        if not session or len(client.store) > _LONGEST_NAME:
            raise _bad(
                f"a session needs a name of its own, in {SESSION_HEADER}, and a store of at most "
                f"{_LONGEST_NAME} characters"
            )
        self._spool.open(session, client, str(body.get("host", "?"))[:256])
        return web.json_response({"lease_seconds": self._spool.lease_seconds})

    async def _leave(self, request: web.Request) -> web.Response:
        session = _session(request)
        with contextlib.suppress(RefusalError):
            # In a thread, as below: to free tens of gigabytes takes seconds.
            await asyncio.to_thread(self._spool.held_for(session).trim_free, 0)
        self._spool.leave(session)
        return web.json_response({})

    async def _listing(self, request: web.Request) -> web.Response:
        session, seen = _session(request), request.query.get("seen", "")
        wait_seconds = min(_seconds(request, "wait"), LONGEST_WAIT_SECONDS)
        self._spool.listens(session, request.transport)
        listing = await self._wait_for_news(request, seen, wait_seconds)
        return web.json_response(listing.to_json())

    async def _server(self, _: web.Request) -> web.Response:
        try:
            return web.Response(body=self._spool.server_json(), content_type="application/json")
        except FileNotFoundError:
            raise RefusalError(
                404, Kind.MISSING, "no server has announced itself in this spool"
            ) from None

    async def _dump(self, request: web.Request) -> web.StreamResponse:
        rid, path = self._finished(request)
        _ = self._start_digest(rid, path)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise _missing(rid) from None
        with file:
            return await _send(request, file)

    async def _digest(self, request: web.Request) -> web.Response:
        rid, path = self._finished(request)
        try:
            size_bytes, digest = await asyncio.shield(self._start_digest(rid, path))
        except FileNotFoundError:
            raise _missing(rid) from None
        return web.json_response({"size_bytes": size_bytes, "xxh3_128": digest})

    async def _release(self, request: web.Request) -> web.Response:
        body = await _read_json(request)
        give_back, discard = _rids(body, "give_back"), _rids(body, "discard")
        runs, keep_bytes = body.get("discard_runs", []), body.get("keep_free")
        if not isinstance(runs, list) or not isinstance(keep_bytes, int | None):
            raise _bad("discard_runs must be a list of runs, and keep_free a number of bytes")
        spool = self._spool.held_for(_session(request))

        def release() -> None:
            for rid in give_back:
                spool.give_back(rid)
            for rid in discard:
                spool.discard(rid)
            for run in runs:
                spool.cleanup(str(run))
            if keep_bytes is not None:
                spool.trim_free(keep_bytes)

        await asyncio.to_thread(release)
        for rid in {*give_back, *discard}:
            self._digests.pop(rid, None)
        return web.json_response({})

    # --- parts --------------------------------------------------------------------------------

    async def _wait_for_news(self, request: web.Request, seen: str, seconds: float) -> Listing:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        state: object = None
        while True:
            over = loop.time() >= deadline or _is_gone(request)
            before, state = state, self._spool.state()
            if over or state != before:
                listing = self._spool.listing()
                if over or listing.seen != seen:
                    return listing
            await asyncio.sleep(LOOK_SECONDS)

    def _finished(self, request: web.Request) -> tuple[RequestId, Path]:
        rid = RequestId.parse(request.match_info["rid"])
        if rid is None:
            raise _bad("not a request id of this protocol")
        self._spool.held_for(_session(request))
        path = self._spool.dump_path(rid)
        if not path.exists():
            raise _missing(rid)
        return rid, path

    def _start_digest(self, rid: RequestId, path: Path) -> asyncio.Task[tuple[int, str]]:
        """Have a thread read the dump while it is being sent."""
        task = self._digests.get(rid)
        if task is None or (task.done() and task.exception() is not None):
            task = self._digests[rid] = asyncio.create_task(asyncio.to_thread(_hash, path))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            if len(self._digests) > _REMEMBERED_DIGESTS:
                self._digests.popitem(last=False)
        return task

    async def _tidying(self, _: web.Application) -> AsyncIterator[None]:
        expiring = asyncio.create_task(self._expire())
        yield
        expiring.cancel()
        self._spool.let_go()
        await asyncio.gather(expiring, *self._digests.values(), return_exceptions=True)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self._spool.expire()

    # --- who may ask --------------------------------------------------------------------------

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who may, and answer errors as JSON; the boundary of the process."""
        try:
            response = await self._admit(request, handler)
        except ConnectionError:
            raise  # nobody is left to be told
        except Exception as error:  # noqa: BLE001  # bugs too: the relay goes on
            response = _explain(error)
        if not response.prepared:
            response.headers[VERSION_HEADER] = VERSION
        return response

    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/health":
            return await handler(request)
        shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if self._expected and not hmac.compare_digest(shown, self._expected):
            what = "another token than this relay's" if shown else "no token"
            raise RefusalError(401, Kind.TOKEN, f"{what}: {_ABOUT_TOKENS}")
        version = request.headers.get(VERSION_HEADER, "none")  # no web page can send it
        if version != VERSION:
            raise RefusalError(
                400,
                Kind.VERSION,
                f"this relay speaks version {VERSION} of its protocol, the client {version[:20]}: "
                "install the same hsstore on both hosts",
            )
        if self._active >= self._max_connections:
            raise RefusalError(503, Kind.BUSY, f"{self._active} requests are under way: ask later")
        self._active += 1
        try:
            self._spool.renew(_session(request))
            return await handler(request)
        finally:
            self._active -= 1
            self._spool.renew(_session(request))


_ABOUT_TOKENS = (
    "give the client the token that the relay was started with, in HSSTORE_RELAY_TOKEN or a file for "
    "--relay-token-file"
)


async def _send(request: web.Request, file: BinaryIO) -> web.StreamResponse:
    """Send a file, or what is left of it behind `Range: bytes=N-`, without reading it.

    Raises
    ------
    ConnectionError
        The client has gone.
    """
    size_bytes = os.fstat(file.fileno()).st_size
    start = _range_start(request, size_bytes)
    response = web.StreamResponse(status=206, headers={VERSION_HEADER: VERSION})
    response.headers["Content-Range"] = f"bytes {start}-{size_bytes - 1}/{size_bytes}"
    response.content_type = "application/octet-stream"
    response.content_length = size_bytes - start
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    line = transport.get_extra_info("socket")
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(DEAD_LINE_SECONDS * 1000))
    try:
        await asyncio.get_running_loop().sendfile(transport, file, start, size_bytes - start)
    except (TimeoutError, RuntimeError) as error:  # a dead line; or it is closing
        raise ConnectionResetError(str(error)) from error
    await response.write_eof()
    return response


def _range_start(request: web.Request, size_bytes: int) -> int:
    match = re.fullmatch(r"bytes=([0-9]{1,18})-", request.headers.get("Range", "bytes=0-"))
    if match is None or int(match[1]) >= size_bytes:
        raise _bad(f"of a dump of {size_bytes} bytes only Range: bytes=N- with N below that")
    return int(match[1])


def _hash(path: Path) -> tuple[int, str]:
    """Return size in bytes and XXH3-128 of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size_bytes = os.fstat(descriptor).st_size
        with mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ) as content:
            hasher = xxhash.xxh3_128()
            hasher.update(content)  # all at once, older versions of it hold up the other threads
            return size_bytes, hasher.hexdigest()
    finally:
        os.close(descriptor)


def _session(request: web.Request) -> str:
    return request.headers.get(SESSION_HEADER, "")


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _seconds(request: web.Request, name: str) -> float:
    text = request.query.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise _bad(f"{name}={text[:40]!r} is no number >= 0")
    return value


def _rids(body: dict[str, Any], name: str) -> list[RequestId]:
    texts = body.get(name, [])
    if not isinstance(texts, list):
        raise _bad(f"{name} must be a list of request ids")
    found = [RequestId.parse(str(text)) for text in texts]
    if None in found:
        raise _bad(f"{name} holds something that is not a request id of this protocol")
    return [rid for rid in found if rid is not None]


async def _read_json(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _bad(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise _bad("the body must be a JSON object")
    return body


def _bad(message: str) -> RefusalError:
    return RefusalError(400, Kind.REQUEST, message)


def _missing(rid: RequestId) -> RefusalError:
    return RefusalError(404, Kind.MISSING, f"no finished dump of {rid} lies in the spool")


def _explain(error: Exception) -> web.Response:
    """Say what an error means for the client."""
    match error:
        case RefusalError():
            refusal = error
        case web.HTTPException():
            message = f"{error.reason}: not a relay's path"
            refusal = RefusalError(error.status, Kind.REQUEST, message)
        case _:
            log.error("unexpected error", exc_info=error)
            message = f"the relay failed, see its log: {error!r}"
            refusal = RefusalError(500, Kind.REQUEST, message)
    return web.json_response({"error": refusal.content}, status=refusal.status)

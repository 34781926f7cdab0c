"""What goes wrong with real object stores: on demand, and counted. A layer before a server of these tests.

`POST /_faults` takes the faults to come, a JSON list; `GET /_log` gives the requests since it was last asked;
`GET /_unused` says how often faults did not come; `POST /_release` lets the requests go that were held, and gives their statuses.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Protocol

from werkzeug.serving import make_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIEnvironment


class Server(Protocol):
    """A server of these tests, behind the faults."""

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        ...

    def name(self, environ: WSGIEnvironment) -> tuple[str, str, str]:
        """Return a request's method, path and query, as S3 would have them: one expression finds it in any server."""
        ...

    def refuse(self, status: int, environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        """Answer with an error, in the server's form."""
        ...

    def forget_conditions(self, environ: WSGIEnvironment) -> None:
        """Take the conditions off a request."""
        ...


class Faulty:
    """Passes requests on, but for those that meet a fault."""

    def __init__(self, server: Server) -> None:
        self._app = server
        self._faults: list[dict[str, Any]] = []
        self._held: list[WSGIEnvironment] = []
        self._log: list[dict[str, str]] = []

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        path = environ["PATH_INFO"]
        if path == "/_faults":
            self._faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            start("204 No Content", [])
            return []
        if path == "/_unused":
            return _json(sum(fault["times"] for fault in self._faults), start)
        if path == "/_log":
            log, self._log = self._log, []
            return _json(log, start)
        if path == "/_release":
            held, self._held = self._held, []
            return _json([_status(self._app, one) for one in held], start)
        if path.startswith("/_"):  # of the server's own
            return self._app(environ, start)
        method, path, query = self._app.name(environ)
        self._log.append(
            {
                "method": method,
                "path": path,
                "query": query,
                "range": environ.get("HTTP_RANGE", ""),
                "authorization": environ.get("HTTP_AUTHORIZATION", ""),
            }
        )
        fault = self._next_fault(f"{method} {path}?{query}")
        return self._answer(fault, environ, start) if fault else self._app(environ, start)

    def _next_fault(self, request: str) -> dict[str, Any] | None:
        for fault in self._faults:
            if fault["times"] and re.search(fault["where"], request):
                if fault.get("later"):  # so many that match are let through before
                    fault["later"] -= 1
                    continue
                fault["times"] -= 1
                return fault
        return None

    def _answer(
        self, fault: dict[str, Any], environ: WSGIEnvironment, start: StartResponse
    ) -> Iterable[bytes]:
        what, connection = fault["what"], environ["werkzeug.socket"]
        if isinstance(what, int):
            return self._app.refuse(what, environ, start)
        if what == "cut":
            return _cut(self._app(environ, start), connection)
        if what == "drip":
            return _drip(self._app(environ, start))
        if what in {"reset", "after", "hold", "kill"}:
            self._leave_without_answer(fault, environ)
            _reset(connection)
            raise ConnectionResetError
        self._spoil(fault, environ)
        return self._app(environ, start)

    def _leave_without_answer(self, fault: dict[str, Any], environ: WSGIEnvironment) -> None:
        body = take_body(environ)
        if fault["what"] == "after" or fault.get("done"):
            _status(self._app, environ)
        if fault["what"] == "hold":
            self._held.append({**environ, "wsgi.input": io.BytesIO(body)})
        if fault["what"] == "kill":
            os.kill(fault["pid"], signal.SIGKILL)

    def _spoil(self, fault: dict[str, Any], environ: WSGIEnvironment) -> None:
        """Change what comes to the store, or when."""
        match fault["what"]:
            case "any version":
                self._app.forget_conditions(environ)
            case "corrupt":
                body = bytearray(take_body(environ))
                in_parts = environ.get("CONTENT_TYPE", "").startswith("multipart/")
                body[body.rfind(b"\r\n\r\n") + 4 if in_parts else 0] ^= 1
                environ["wsgi.input"] = io.BytesIO(body)
            case "delay":
                self._delay(fault)
            case what:
                environ["hsstore.fault"] = what  # for the server itself

    def _delay(self, fault: dict[str, Any]) -> None:
        """Wait for so long, or until other faults are asked for."""
        deadline = time.monotonic() + fault["seconds"]
        while any(one is fault for one in self._faults) and time.monotonic() < deadline:
            time.sleep(0.01)


def take_body(environ: WSGIEnvironment) -> bytes:
    """Read what came with a request; whoever reads it next finds it again."""
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def serve(server: Server) -> None:
    """Serve on loopback; print the port for who started it."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    listening = make_server("127.0.0.1", 0, Faulty(server), threaded=True)
    print(listening.port, flush=True)  # noqa: T201
    listening.serve_forever()


def _json(what: object, start: StartResponse) -> list[bytes]:
    start("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(what).encode()]


def _status(app: Server, environ: WSGIEnvironment) -> str:
    """Do what a request asks for; return the status of the answer."""
    statuses: list[str] = []
    list(app(environ, lambda status, *_: statuses.append(status)))  # type: ignore[arg-type]
    return statuses[0]


def _drip(body: Iterable[bytes]) -> Iterator[bytes]:
    for byte in b"".join(body):
        yield bytes([byte])
        time.sleep(0.1)


def _cut(body: Iterable[bytes], connection: socket.socket) -> Iterator[bytes]:
    data = b"".join(body)
    yield data[: len(data) // 2]
    _reset(connection)
    raise ConnectionResetError


def _reset(connection: socket.socket) -> None:
    """Close at once; `close` would wait for the files that werkzeug has made of the socket."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection._real_close()  # type: ignore[attr-defined]

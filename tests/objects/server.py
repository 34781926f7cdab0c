"""A process with moto's S3 server on loopback, and what goes wrong with real ones: on demand, and counted.

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
from typing import TYPE_CHECKING, Any

os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = "20"  # a small store is several pages of a listing then

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from tests.objects.strict import Strict, refuse, take_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

MESSAGES = {
    200: "InternalError",
    403: "AccessDenied",
    404: "NoSuchBucket",
    409: "ConditionalRequestConflict",
    500: "InternalError",
    503: "SlowDown",
}


class Faulty:
    """Passes requests on, but for those that meet a fault."""

    def __init__(self) -> None:
        self._app: WSGIApplication = Strict(DomainDispatcherApplication(create_backend_app))
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
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(sum(fault["times"] for fault in self._faults)).encode()]
        if path == "/_log":
            log, self._log = self._log, []
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(log).encode()]
        if path == "/_release":
            held, self._held = self._held, []
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps([_status(self._app, one) for one in held]).encode()]
        query = environ.get("QUERY_STRING", "")
        self._log.append(
            {
                "method": environ["REQUEST_METHOD"],
                "path": path,
                "query": query,
                "range": environ.get("HTTP_RANGE", ""),
            }
        )
        fault = self._next_fault(f"{environ['REQUEST_METHOD']} {path}?{query}")
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
            return refuse(what, MESSAGES[what], start)
        if what == "cut":
            return _cut(self._app(environ, start), connection)
        if what == "drip":
            return _drip(self._app(environ, start))
        if what in {"reset", "after", "hold", "kill"}:
            self._leave_without_answer(fault, environ)
            _reset(connection)
            raise ConnectionResetError
        _spoil(fault, environ)
        return self._app(environ, start)

    def _leave_without_answer(self, fault: dict[str, Any], environ: WSGIEnvironment) -> None:
        body = take_body(environ)
        if fault["what"] == "after" or fault.get("done"):
            _status(self._app, environ)
        if fault["what"] == "hold":
            self._held.append({**environ, "wsgi.input": io.BytesIO(body)})
        if fault["what"] == "kill":
            os.kill(fault["pid"], signal.SIGKILL)


def _spoil(fault: dict[str, Any], environ: WSGIEnvironment) -> None:
    """Change what comes to the store, or when."""
    match fault["what"]:
        case "any version":
            environ.pop("HTTP_IF_MATCH", None)
            environ.pop("HTTP_IF_NONE_MATCH", None)
        case "corrupt":
            body = bytearray(take_body(environ))
            body[0] ^= 1
            environ["wsgi.input"] = io.BytesIO(body)
        case "delay":
            time.sleep(fault["seconds"])
        case _:
            pass


def _status(app: WSGIApplication, environ: WSGIEnvironment) -> str:
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


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = make_server("127.0.0.1", 0, Faulty(), threaded=True)
    print(server.port, flush=True)  # noqa: T201  # read by who started it
    server.serve_forever()

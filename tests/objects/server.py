"""A process with moto's S3 server on loopback, and what goes wrong with real ones: on demand, and counted.

`POST /_faults` takes the faults to come, a JSON list; `GET /_log` gives the requests since it was last asked.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

MESSAGES = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied", 404: "NoSuchBucket"}


class Faulty:
    """Passes requests on, but for those that meet a fault."""

    def __init__(self) -> None:
        self._app: WSGIApplication = DomainDispatcherApplication(create_backend_app)
        self._faults: list[dict[str, Any]] = []
        self._log: list[dict[str, str]] = []

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        path = environ["PATH_INFO"]
        if path == "/_faults":
            self._faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            start("204 No Content", [])
            return []
        if path == "/_log":
            log, self._log = self._log, []
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(log).encode()]
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
                fault["times"] -= 1
                return fault
        return None

    def _answer(
        self, fault: dict[str, Any], environ: WSGIEnvironment, start: StartResponse
    ) -> Iterable[bytes]:
        match fault["what"]:
            case "reset":
                _reset(environ["werkzeug.socket"])
                raise ConnectionResetError
            case "cut":
                return _cut(self._app(environ, start), environ["werkzeug.socket"])
            case "delay":
                time.sleep(fault["seconds"])
                return self._app(environ, start)
            case status:
                code = MESSAGES[status]
                start(f"{status} {code}", [("Content-Type", "application/xml")])
                text = f"<Error><Code>{code}</Code><Message>injected</Message></Error>"
                return [text.encode()]


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

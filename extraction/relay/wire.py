"""HTTP from a client to a relay: one connection, blocking, for one thread.

No retry is hidden in here: also one that finds its connection closed, as it was idle, is repeated by
who sent it. Proxies of the environment are never used.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlencode, urlsplit

from extraction.relay.protocol import SESSION_HEADER, VERSION, VERSION_HEADER, Kind, Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from extraction.spool import RequestId

SILENT_SECONDS: Final = 8.0
"""A relay that sends nothing for so long is away: it answers a listing within a second."""


class RelayAwayError(Exception):
    """The relay did not answer, or the line was cut: it may come back."""


class RelayRefusedError(Exception):
    """The relay answered that it will not: `kind` says why."""

    def __init__(self, kind: str, message: str, idle_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.kind = kind
        self.idle_seconds = idle_seconds


class StrangerError(RelayRefusedError):
    """What answered is no relay: the wrong URL, or something in front of a relay that is away."""


@dataclass(frozen=True, slots=True)
class RelayAddress:
    """Where a relay is, and what it takes to be let in."""

    url: str
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    """None: the system's certificate authorities."""


class Wire:
    """One connection to a relay; a context manager. `close` may be called from another thread."""

    def __init__(self, address: RelayAddress, session: Callable[[], str] = str) -> None:
        """Connect when the first request is sent.

        Parameters
        ----------
        session
            Gives the session in whose name to ask; none by default.
        """
        self._session = session
        self._closed = False
        self._address = address
        parts = urlsplit(address.url)
        self._prefix = parts.path.rstrip("/")
        self._connection = _connection(address, parts.hostname or "", parts.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection for good; who waits in it finds it broken."""
        self._closed = True
        if (line := self._connection.sock) is not None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> bytes:
        """Send a request; return the answer's body.

        Raises
        ------
        RelayAwayError, RelayRefusedError
        """
        with self._asking(method, path, body, {}) as response:
            return response.read()

    def ask_json(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:  # noqa: ANN401  # JSON
        """Send a request; return what the answer says.

        Raises
        ------
        RelayAwayError, RelayRefusedError
        """
        answer = self.ask(method, path, body)
        try:
            return json.loads(answer)
        except ValueError:
            raise self._stranger(f"no JSON: {answer[:100]!r}") from None

    def listing(self, **query: object) -> tuple[Listing, str]:
        """Ask what lies in the spool; returns it, and the name of that state.

        Raises
        ------
        RelayAwayError, RelayRefusedError
        """
        content = self.ask_json("GET", f"/v1/spool?{urlencode(query)}")
        try:
            return Listing.from_json(content), str(content["seen"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._stranger(f"no listing of a spool: {error!r}") from None

    @contextmanager
    def dump(
        self, rid: RequestId, start: int, size_bytes: int
    ) -> Iterator[http.client.HTTPResponse]:
        """Give the bytes [start, size_bytes) of a dump to read from.

        Raises
        ------
        RelayAwayError, RelayRefusedError
        """
        ranged = {"Range": f"bytes={start}-"}
        with self._asking("GET", f"/v1/dumps/{rid}", None, ranged) as response:
            said = response.getheader("Content-Range")
            if said != f"bytes {start}-{size_bytes - 1}/{size_bytes}":
                raise RelayRefusedError(
                    Kind.MISSING, f"asked for {rid} from {start} of {size_bytes} on, got {said}"
                )
            yield response

    @contextmanager
    def _asking(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        headers: dict[str, str],
    ) -> Iterator[http.client.HTTPResponse]:
        whole = False
        try:
            response = self._send(method, path, body, headers)
            self._refuse(response)
            yield response
            whole = response.isclosed() or response.length == 0
        except ssl.SSLCertVerificationError as error:
            raise RelayRefusedError(
                Kind.TOKEN,
                f"{self._address.url}: the relay's certificate is not trusted ({error}); give its "
                "authority with --ca-cert FILE",
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            # ValueError: another thread has closed the connection.
            raise RelayAwayError(str(error) or type(error).__name__) from None
        finally:
            if not whole:  # what was not read would be taken for the next answer
                self._connection.close()

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        headers: dict[str, str],
    ) -> http.client.HTTPResponse:
        content = None if body is None else json.dumps(body)
        said = {VERSION_HEADER: VERSION, **headers}
        if session := self._session():
            said[SESSION_HEADER] = session
        if self._address.token:
            said["Authorization"] = f"Bearer {self._address.token}"
        if self._connection.sock is None and not self._closed:
            self._connection.connect()
        if self._closed:  # by another thread, perhaps while we connected
            raise RelayAwayError("the connection was closed here")
        self._connection.request(method, self._prefix + path, content, said)
        return self._connection.getresponse()

    def _refuse(self, response: http.client.HTTPResponse) -> None:
        """Raise for what is no success."""
        version = response.getheader(VERSION_HEADER)
        if version is None:
            if response.status >= http.client.INTERNAL_SERVER_ERROR:
                raise RelayAwayError(f"something in front of it answers {response.status}")
            raise self._stranger(f"{response.status} without a relay's header")
        if version != VERSION:
            raise RelayRefusedError(
                Kind.VERSION,
                f"{self._address.url} speaks version {version[:20]} of the relay's protocol, this "
                f"side {VERSION}: install the same hsstore on both hosts",
            )
        if response.status < http.client.BAD_REQUEST:
            return
        error = _error(response.read())
        message = f"{self._address.url}: {error.get('message', response.status)}"
        if (
            response.status >= http.client.INTERNAL_SERVER_ERROR
            and error.get("kind") != Kind.NO_SPOOL
        ):
            raise RelayAwayError(message)
        raise RelayRefusedError(
            str(error.get("kind")), message, float(error.get("idle_seconds") or 0.0)
        )

    def _stranger(self, what: str) -> StrangerError:
        return StrangerError(
            Kind.REQUEST,
            f"{self._address.url} answers with {what}: give the URL that `hsstore relay` printed, not "
            "that of the server",
        )


def _connection(address: RelayAddress, host: str, port: int | None) -> http.client.HTTPConnection:
    if urlsplit(address.url).scheme == "https":
        context = address.tls or ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=SILENT_SECONDS, context=context)
    return http.client.HTTPConnection(host, port, timeout=SILENT_SECONDS)


def _error(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}

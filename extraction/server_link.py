"""One server as the client sees it: its HTTP API, and whether it is there.

The API is SGLang's: `/generate`, `/abort_request`, `/health`. No retry is hidden in here: what a
failure means for a sample is said by the type of the error, and decided by the pipeline. What no
retry can mend (a key, a certificate, another address) is refused at once.

Proxies of the environment are never used, on loopback or elsewhere: both sides share memory, so
the server is on this machine, or a port of its container is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from extraction.access import KEY_VARIABLE, Access
from hsstore.errors import InterruptedRunError, RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from extraction.relay.mirror import Mirror

log = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
PROBE_SECONDS = 0.5
MAX_PROBE_SECONDS = 5.0
SAY_SECONDS = 15.0
"""Between log lines that say what is waited for."""

ROUTER_LISTS = (("/workers", "workers"), ("/list_workers", "urls"))
"""Where SGLang's router lists its servers (older versions have the second one only), and the field
of the answer. A server itself has neither."""
STRANGE_SECONDS = 15.0
"""So long a proxy may have no route yet to a server that is starting."""
ENDED_EARLY = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""TLS that broke off, as when a server stops: it may come back."""


class ServerAwayError(Exception):
    """The server refused, reset, or answered with a 5xx: not the sample's fault."""


class RequestAbortedError(ServerAwayError):
    """Somebody had the server abort this request: it is there, and may be asked again at once."""


class RequestRefusedError(Exception):
    """The server refused this very request (4xx)."""


class ServerLink:
    """HTTP to one server; a context manager around its connections."""

    def __init__(
        self,
        url: str,
        max_connections: int,
        access: Access | None = None,
        mirror: tuple[str, Path] | None = None,
    ) -> None:
        """Make ready.

        Parameters
        ----------
        mirror
            URL of the relay that the server's spool is behind, and where to mirror it.
        """
        self.url = url.rstrip("/")
        self.up = asyncio.Event()
        self._max_connections = max_connections
        self._access = access or Access()
        self._strange_since: float | None = None
        self._session: aiohttp.ClientSession | None = None
        self._mirror = mirror

    async def __aenter__(self) -> Self:
        key = self._access.api_key
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._max_connections + 8, ssl=self._access.tls or True
            ),
            # A prefill may take minutes: progress is judged by the server's heartbeat instead.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open_session.close()

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the link is used outside its context")
        return self._session

    async def mirror(self, timeout_seconds: float) -> Mirror | None:
        """Return the mirror of a spool that is behind a relay, once the relay has answered.

        Raises
        ------
        InterruptedRunError
            It did not answer in time.
        SpoolError
            It lets nobody in, or the local directory cannot be used.
        """
        if self._mirror is None:
            return None
        mirror = await self._access.mirrors.at(*self._mirror)
        await mirror.connect(timeout_seconds)
        return mirror

    async def generate(self, rid: str, input_ids: Sequence[int]) -> None:
        """Have the server prefill `input_ids`; the states come through the spool.

        Raises
        ------
        ServerAwayError
        RequestAbortedError
            Not by us: no states will come.
        RequestRefusedError
        RefusedError
            It wants another API key, another certificate or another URL: no request will ever pass.
        """
        await self._generate(
            {
                "rid": rid,
                "input_ids": input_ids,
                "sampling_params": {"max_new_tokens": 0, "temperature": 0},
                "extra_key": rid,  # keeps other requests' prefix cache out of this one
            }
        )

    async def complete(
        self, rid: str, input_ids: Sequence[int], sampling: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Have the server answer a prompt; returns SGLang's document: `output_ids`, `meta_info`.

        Raises
        ------
        ServerAwayError, RequestAbortedError, RequestRefusedError, RefusedError
            As in `generate`.
        """
        body = {"rid": rid, "input_ids": input_ids, "sampling_params": sampling}
        answer = await self._generate(body)
        document = _parse_json(answer)
        if not isinstance(document, dict) or not isinstance(document.get("output_ids"), list):
            raise self._stranger("/generate", "no output_ids", answer)
        return document

    async def _generate(self, body: dict[str, Any]) -> bytes:
        async with self._ask("POST", "/generate", json=body) as response:
            if response.status != HTTPStatus.OK:
                self._raise_for(response, (await response.text())[:500])
            answer = await response.read()
        if (why := abort_reason(answer)) is not None:
            raise RequestAbortedError(f"somebody else aborted the request (the server says: {why})")
        return answer

    async def abort(self, rid: str, timeout_seconds: float) -> None:
        """Tell the server that nobody waits for this request any more; best effort."""
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                self._ask("POST", "/abort_request", json={"rid": rid}) as response,
            ):
                await response.read()
        except (ServerAwayError, RefusedError, TimeoutError):
            return  # it is gone, or it will find out by itself

    async def trouble(self, timeout_seconds: float = CONNECT_SECONDS) -> str:
        """Ask for `/health` once; return what is wrong, or nothing when it answers well.

        Raises
        ------
        RefusedError
            As in `generate`.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        try:
            async with self._ask("GET", "/health", timeout=timeout) as response:
                self._refuse_for_good(response)
                self._refuse_strangers(response.status)
                if response.status == HTTPStatus.OK:
                    return ""
                return f"{self.url}/health answers {response.status}"
        except ServerAwayError as error:
            return str(error)

    async def wait_until_healthy(self) -> None:
        """Probe with growing pauses until the server answers, and say so now and then.

        Raises
        ------
        RefusedError
            As in `generate`.
        """
        loop = asyncio.get_running_loop()
        said = loop.time()
        pause = PROBE_SECONDS
        while trouble := await self.trouble():
            if loop.time() - said >= SAY_SECONDS:
                log.info("waiting for the server: %s", trouble)
                said = loop.time()
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PROBE_SECONDS)

    @asynccontextmanager
    async def patience(self, seconds: float) -> AsyncIterator[None]:
        """Wait in here for a server that is away, so long and no longer.

        Raises
        ------
        InterruptedRunError
        """
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise InterruptedRunError(
                f"server {self.url} did not answer for {seconds:.0f} s; start it, then run the same "
                "command again"
            ) from error

    def refuse_to_wait(self) -> None:
        """Let the caller ask elsewhere, or later, when the server has gone away.

        Raises
        ------
        ServerAwayError
        """
        if not self.up.is_set():
            raise ServerAwayError(f"{self.url} is away")

    def park(self, error: ServerAwayError) -> None:
        """Send nothing more until the server answers again; one that aborts requests does so."""
        if not isinstance(error, RequestAbortedError):
            self.up.clear()

    async def model_name(self) -> str:
        """Return the last part of the path of the server's model; empty where it does not say.

        Raises
        ------
        ServerAwayError
        RefusedError
            It answers with something else than JSON: it is no inference server.
        """
        timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
        async with self._ask("GET", "/model_info", timeout=timeout) as response:
            if response.status != HTTPStatus.OK:
                return ""
            answer = _parse_json(text := await response.read())
        if answer is None:
            raise self._stranger("/model_info", "no JSON", text)
        path = answer.get("model_path") if isinstance(answer, dict) else None
        return path.rstrip("/").rpartition("/")[2] if isinstance(path, str) else ""

    async def routed_servers(self) -> int | None:
        """Return how many servers stand behind this URL, if SGLang's router answers there.

        None where it is not one, or does not say (its lists may want a key of their own).
        """
        for path, field in ROUTER_LISTS:
            timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
            try:
                async with self._ask("GET", path, timeout=timeout) as response:
                    answer = await response.json() if response.status == HTTPStatus.OK else None
            except (ServerAwayError, ValueError):
                continue
            servers = answer.get(field) if isinstance(answer, dict) else None
            if isinstance(servers, list):
                return len(servers)
        return None

    @asynccontextmanager
    async def _ask(
        self,
        method: str,
        path: str,
        **more: Any,  # noqa: ANN401  # aiohttp's own
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request; follows no redirect, which would turn a POST into a GET."""
        url = f"{self.url}{path}"
        try:
            async with self._open_session.request(
                method, url, allow_redirects=False, **more
            ) as response:
                yield response
        except aiohttp.ClientSSLError as error:
            if isinstance(getattr(error, "os_error", None), ENDED_EARLY):
                raise ServerAwayError(f"{self.url}: {error}") from error
            raise RefusedError(_explain_tls(self.url, error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServerAwayError(f"{self.url}: {str(error) or type(error).__name__}") from error

    def _raise_for(self, response: aiohttp.ClientResponse, text: str) -> None:
        self._refuse_for_good(response)
        status = response.status
        later = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT}
        if status in later or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ServerAwayError(f"the server answered {status}: {text}")
        raise RequestRefusedError(f"the server answered {status}: {text}")

    def _refuse_strangers(self, status: int) -> None:
        """Refuse what has no `/health`, once that cannot be a server that is starting."""
        now = asyncio.get_running_loop().time()
        if status not in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}:
            self._strange_since = None
            return
        self._strange_since = self._strange_since or now
        if now - self._strange_since > STRANGE_SECONDS:
            raise RefusedError(
                f"{self.url}/health has answered {status} for {STRANGE_SECONDS:.0f} s: no inference "
                "server is there; check the URL (its port, its path, http or https)"
            )

    def _stranger(self, path: str, what: str, answer: bytes) -> RefusedError:
        return RefusedError(
            f"{self.url}{path} answers with {what}: is it an SGLang server, or `hsstore serve`? It "
            f"says: {answer[:200]!r}"
        )

    def _refuse_for_good(self, response: aiohttp.ClientResponse) -> None:
        """Refuse what would be the same for every request."""
        status = response.status
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            sent = "the key that was sent is not" if self._access.api_key else "no key was sent:"
            raise RefusedError(
                f"the server answered {status}: {sent} the one it was started with; set "
                f"{KEY_VARIABLE} to it, or give --api-key-file"
            )
        if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            raise RefusedError(
                f"{self.url} redirects ({status}) to {response.headers.get('Location', '?')}: give "
                "the server's own URL"
            )


def _parse_json(answer: bytes) -> Any:  # noqa: ANN401
    """Return None for what is no JSON."""
    try:
        return json.loads(answer)
    except ValueError:
        return None


def abort_reason(answer: bytes) -> str | None:
    """Return why SGLang aborted a request that it answers with 200; None where it did not.

    >>> abort_reason(b'{"meta_info": {"finish_reason": {"type": "abort", "message": "Aborted"}}}')
    'Aborted'
    >>> abort_reason(b'{"meta_info": {"finish_reason": {"type": "length"}}}')
    >>> abort_reason(b"not JSON")
    """
    found = _parse_json(answer)
    for field in ("meta_info", "finish_reason"):
        found = found.get(field) if isinstance(found, dict) else None
    if not isinstance(found, dict) or found.get("type") != "abort":
        return None
    return str(found.get("message") or "no reason")[:500]


def _explain_tls(url: str, error: aiohttp.ClientSSLError) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return (
            f"{url}: the server's certificate is not trusted ({error.certificate_error}); give its "
            "authority with --ca-cert FILE, and a URL with the name that the certificate is for"
        )
    return f"{url}: no TLS with this server ({error}); is it http instead of https?"

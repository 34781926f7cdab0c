"""A server's spool on another machine, mirrored here: `SpoolClient` and `SpoolView` see no difference.

A thread asks the relay what lies in the spool and shows it in the local directory; others fetch the
dumps (`Downloads`), another one sends what was given back (`Releases`). The asyncio side of the run
never waits for the line.

Invariant: nothing is removed at the server but what the client gave back or discarded here, or what
it would have removed as the session's end there.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from typing_extensions import override

from extraction.relay.download import Downloads
from extraction.relay.line import Line
from extraction.relay.local import LocalSpool
from extraction.relay.protocol import LONGEST_WAIT_SECONDS, Kind, Listing
from extraction.relay.releases import Releases
from extraction.relay.shown import Shown
from extraction.relay.wire import RelayAddress, RelayAwayError, RelayRefusedError, Wire
from extraction.spool import (
    CaptureFailure,
    ClientInfo,
    Heartbeat,
    SpoolBusyError,
    SpoolClient,
    SpoolError,
    SpoolForeignError,
    SpoolMissingError,
)
from hsstore.errors import InterruptedRunError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    from extraction.spool import RequestId

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
RETRY_SECONDS: Final = 0.5
HELD_SECONDS: Final = 3.0
"""So long one waits for a run that holds the spool before it shows whether it is alive."""
JOIN_SECONDS: Final = 0.5
FLUSH_SECONDS: Final = 10.0
"""So long the end of a session may wait for a relay that is away."""
BEAT_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Session:
    """One time that the spool is held; what an earlier one of the same run sent may come late."""

    client: ClientInfo
    name: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def body(self) -> dict[str, object]:
        """What the relay is told."""
        return {
            "run": self.client.run,
            "store": self.client.store,
            "host": socket.gethostname(),
        }


class Mirror:
    """One relay's spool, here. An asynchronous context manager around its threads.

    Raises `SpoolError` where a spool of this machine would.
    """

    def __init__(self, address: RelayAddress, path: Path) -> None:
        """Make or take over the local directory.

        Raises
        ------
        SpoolForeignError, SpoolBusyError
            It is somebody else's, or another mirror lives there.
        """
        self.path = path
        self.broken: SpoolError | None = None
        """Why nothing will come any more."""
        self._address = address
        self._session: _Session | None = None
        self._stop = threading.Event()
        self._listed = threading.Event()
        """Whether the relay has ever answered."""
        self._fresh = threading.Event()
        self._line = Line(address.url)
        self._local = LocalSpool(path, address.url)
        self._shown = Shown(self._local)
        self._downloads = Downloads(self._local, self._new_wire, self._moved)
        self._releases = Releases(self._new_wire)
        self._wire = self._new_wire()
        self._hurry = threading.Event()
        """Whether a listing is wanted that was made after the session began."""
        self._over = ""
        """The run whose session is at its end: nothing is fetched for it any more."""
        self._keep_free_bytes: int | None = None
        self._beaten: tuple[Heartbeat | None, int] = (None, 0)
        self._moved_at = 0.0
        self._polling = threading.Thread(target=self._poll, daemon=True, name="relay-mirror")

    async def __aenter__(self) -> Self:
        self._polling.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._close)

    async def connect(self, timeout_seconds: float) -> None:
        """Wait until the relay has answered.

        Raises
        ------
        InterruptedRunError
            It did not in time.
        SpoolForeignError
            It wants another token, speaks another version, or is no relay.
        """
        deadline = time.monotonic() + timeout_seconds
        while not await asyncio.to_thread(self._listed.wait, 0.2):
            self.raise_if_broken()
            if time.monotonic() > deadline:
                raise InterruptedRunError(
                    f"relay {self._address.url} did not answer for {timeout_seconds:.0f} s "
                    f"({self._line.trouble}); start it on the server's host with `hsstore relay "
                    "SPOOL`, then run the same command again"
                )

    @asynccontextmanager
    async def hold(self, client: ClientInfo) -> AsyncIterator[SpoolClient]:
        """Hold the spool; gives the client's side, with all dumps that lay at the server in it.

        Raises
        ------
        SpoolBusyError, SpoolMissingError, SpoolForeignError
        """
        session = _Session(client)
        await asyncio.to_thread(self._open, session)
        try:
            with _MirrorClient(self.path, client, self) as spool:
                yield spool
        finally:
            await asyncio.to_thread(self._leave, session)

    # --- what the client does -----------------------------------------------------------------

    def raise_if_broken(self) -> None:
        """Raise why nothing will come any more.

        Raises
        ------
        SpoolError
        """
        if self.broken is not None:
            raise self.broken

    def give_back(self, rid: RequestId) -> None:
        """Give a dump back at the server too."""
        self._releases.give_back(rid)
        self._downloads.forget(rid)

    def discard(self, rid: RequestId) -> None:
        """Discard a request at the server too."""
        self._releases.discard(rid)
        self._downloads.forget(rid)

    def discard_run(self, run: str) -> None:
        """Discard all requests of a run at the server too."""
        self._over = run
        self._releases.discard_run(run)
        self._downloads.forget_run(run)

    def keep_free(self, keep_bytes: int) -> None:
        """Have the server's free files trimmed too, when the relay is next asked."""
        known = self._keep_free_bytes
        self._keep_free_bytes = keep_bytes if known is None else min(known, keep_bytes)

    def is_coming(self, rid: RequestId) -> bool:
        """Tell whether a dump may be finished there, and not be here yet."""
        return self._line.is_cut or self._downloads.is_coming(rid)

    # --- the session --------------------------------------------------------------------------

    def _open(self, session: _Session) -> None:
        began = time.monotonic()
        with Wire(self._address, lambda: session.name) as wire:
            while not self._try_open(wire, session, time.monotonic() - began):
                self._stop.wait(RETRY_SECONDS)
                self._check_going()
        self._downloads.wait_for_room_of(session.client.run)
        self._fresh.clear()
        self._over = ""
        self._session = session
        self._hurry.set()
        while not self._fresh.wait(RETRY_SECONDS):
            self._check_going()
        self._catch_up()

    def _check_going(self) -> None:
        self.raise_if_broken()
        if self._stop.is_set():
            raise SpoolMissingError("the mirror was closed")

    def _try_open(self, wire: Wire, session: _Session, waited_seconds: float) -> bool:
        """Ask for the session once; tell whether we have it.

        A run that was killed holds it for a while: then it is silent.
        """
        try:
            wire.ask("POST", "/v1/session", session.body)
        except RelayAwayError as error:
            self._line.bad(error)
            return False
        except RelayRefusedError as error:
            silent = error.idle_seconds > LONGEST_WAIT_SECONDS
            if error.kind == Kind.HELD and (silent or waited_seconds < HELD_SECONDS):
                return False
            raise _spool_error(error) from error
        return True

    def _catch_up(self) -> None:
        """Wait until what lies at the server is here: it is salvaged once, at the beginning."""
        missing = self._downloads.all_coming()
        if missing:
            log.info("%d dumps lie at the server: fetching them", len(missing))
        skipped_bytes = self._downloads.wait_for(missing, self._stop)
        if skipped_bytes:
            log.warning(
                "dumps of a dead run (%d bytes) stay at the server: there is no room for them in %s; "
                "the next run may use them",
                skipped_bytes,
                self.path,
            )

    def _leave(self, session: _Session) -> None:
        """Have the relay do what it was asked for, and tell it that we have left."""
        flushed = self.broken is None and self._releases.flush(FLUSH_SECONDS)
        self._session = None
        left = self._releases.drop()
        if left:
            log.warning(
                "the relay has not acknowledged %d releases: the next run repeats them", left
            )
        if not flushed or self._line.is_cut:
            return
        with Wire(self._address, lambda: session.name) as wire:
            try:
                wire.ask("DELETE", "/v1/session")
            except (RelayAwayError, RelayRefusedError) as error:
                log.warning("the relay was not told that this run has left: %s", error)

    # --- the polling thread -------------------------------------------------------------------

    def _poll(self) -> None:
        pause_seconds, seen = FIRST_PAUSE_SECONDS, ""
        while not self._stop.is_set():
            try:
                seen = self._look(seen)
                self._line.good()
                pause_seconds = FIRST_PAUSE_SECONDS
            except RelayAwayError as error:
                self._line.bad(error)
                self._stop.wait(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
            except RelayRefusedError as error:
                self._break(_spool_error(error))
            except (OSError, SpoolError) as error:
                self._break(SpoolMissingError(f"the mirror {self.path} cannot be used: {error}"))
            except Exception as error:  # a bug: who waits would wait for ever
                log.exception("unexpected error")
                self._break(SpoolError(f"unexpected {type(error).__name__}: {error}"))

    def _break(self, error: SpoolError) -> None:
        if not self._stop.is_set():
            self.broken = error
            self._stop.set()

    def _look(self, seen: str) -> str:
        """Ask what is new, and show it; returns the name of that state."""
        hurry = self._hurry.is_set()
        session = self._session  # after that: `_open` sets them in the other order
        keep_bytes, self._keep_free_bytes = self._keep_free_bytes, None
        query: dict[str, object] = {} if keep_bytes is None else {"keep_free": keep_bytes}
        wait_seconds = 0.0 if hurry or not self._listed.is_set() else LONGEST_WAIT_SECONDS
        listing, now = self._wire.listing(seen=seen, wait=wait_seconds, **query)
        if session and session is self._session and listing.holder != session.name:
            # The relay was restarted, or has not heard of us for long.
            self._wire.ask("POST", "/v1/session", session.body)
            log.info("relay %s holds the spool for this run again", self._address.url)
        self._apply(listing, session)
        self._listed.set()
        if hurry:
            self._hurry.clear()
            self._fresh.set()
        return now

    def _apply(self, listing: Listing, session: _Session | None) -> None:
        self._shown.server(listing, self._server_json)
        if session is not None and session.client.run != self._over:
            self._downloads.gone(listing.finished)
            self._downloads.add(listing.finished, self._releases)
            self._shown.files(listing, session.client.run, self._releases)
        state = listing.heartbeat, self._downloads.coming
        if state != self._beaten:
            self._beat(*state)

    def _server_json(self) -> bytes | None:
        try:
            with self._new_wire() as wire:
                return wire.ask("GET", "/v1/server")
        except RelayRefusedError as error:
            if error.kind == Kind.MISSING:  # it has gone meanwhile
                return None
            raise

    def _moved(self) -> None:
        """Count bytes that came as progress; called from the threads that fetch."""
        now = time.monotonic()
        if now - self._moved_at > BEAT_SECONDS:
            self._moved_at = now
            self._beat(self._beaten[0], self._downloads.coming)

    def _beat(self, beat: Heartbeat | None, coming: int) -> None:
        self._beaten = beat, coming
        if beat is not None:
            self._local.beat(beat, coming)

    def _new_wire(self) -> Wire:
        return Wire(self._address, lambda: self._session.name if self._session else "")

    def _close(self) -> None:
        self._stop.set()
        self._wire.close()
        self._polling.join(JOIN_SECONDS)
        self._downloads.close()
        self._releases.close()
        self._local.close()


class _MirrorClient(SpoolClient):
    """A client of the mirror's directory, whose every removal is repeated at the server."""

    def __init__(self, path: Path, client: ClientInfo, mirror: Mirror) -> None:
        self._mirror = mirror
        super().__init__(path, client)

    @override
    def settled(self, rids: Collection[RequestId]) -> tuple[list[RequestId], list[RequestId]]:
        self._mirror.raise_if_broken()
        return super().settled(rids)

    @override
    def is_coming(self, rid: RequestId) -> bool:
        return self._mirror.is_coming(rid)

    @override
    def give_back(self, rid: RequestId) -> None:
        super().give_back(rid)
        self._mirror.give_back(rid)

    @override
    def take_error(self, rid: RequestId) -> CaptureFailure:
        failure = super().take_error(rid)
        self._mirror.discard(rid)
        return failure

    @override
    def trim_free(self, keep_bytes: int) -> None:
        super().trim_free(keep_bytes)
        self._mirror.keep_free(keep_bytes)

    @override
    def cleanup(self, run: str) -> None:
        super().cleanup(run)
        self._mirror.discard_run(run)

    @override
    def _remove(self, rid: RequestId) -> None:
        super()._remove(rid)
        self._mirror.discard(rid)


def _spool_error(error: RelayRefusedError) -> SpoolError:
    """Say it as a spool of this machine would."""
    if error.kind == Kind.HELD:
        return SpoolBusyError(str(error))
    if error.kind == Kind.NO_SPOOL:
        return SpoolMissingError(str(error))
    return SpoolForeignError(str(error))

"""A server's spool on another machine, mirrored here: `SpoolClient` and `SpoolView` see no difference.

A thread asks the relay what lies in the spool and shows it in the local directory; others fetch the
dumps (`Downloads`), another one sends what was given back (`Releases`). The asyncio side of the run
never waits for the line.

Invariant: nothing is removed at the server but what the client gave back or discarded here, what it
would have removed as the session's end there, and what dead runs left that it cannot use.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Self

from typing_extensions import override

from extraction.relay.download import Downloads
from extraction.relay.line import Line
from extraction.relay.local import LocalSpool
from extraction.relay.opening import Session, begin, passes, spool_error
from extraction.relay.protocol import LONGEST_WAIT_SECONDS, Kind
from extraction.relay.releases import Releases
from extraction.relay.wire import (
    RelayAddress,
    RelayAwayError,
    RelayRefusedError,
    Wire,
)
from extraction.spool import SpoolClient, SpoolError, SpoolMissingError
from extraction.spool.memory import headroom_bytes
from hsstore.errors import InterruptedRunError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    from extraction.relay.protocol import Listing
    from extraction.spool import CaptureFailure, ClientInfo, Heartbeat, RequestId

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
RETRY_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 0.1
JOIN_SECONDS: Final = 0.5
FLUSH_SECONDS: Final = 10.0
"""So long the end of a session may wait for a relay that is away."""
BEAT_SECONDS: Final = 0.1


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
        self._session: Session | None = None
        self._stop = threading.Event()
        self._listed = threading.Event()
        """Whether the relay has ever answered."""
        self._line = Line(address.url)
        self._local = LocalSpool(path, address.url)
        self._downloads = Downloads(self._local, self._new_wire, self._moved)
        self._releases = Releases(self._new_wire)
        self._wire = self._new_wire()
        self._over = ""
        """The run whose session is at its end: nothing is fetched for it any more."""
        self._beaten: tuple[Heartbeat | None, int] = (None, 0)
        self._moved_at = 0.0
        self._polling = threading.Thread(target=self._poll, daemon=True, name="relay-mirror")

    async def __aenter__(self) -> Self:
        self._polling.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._close)

    async def connect(self, timeout_seconds: float) -> None:
        """Wait until the relay has answered, and does so still.

        Raises
        ------
        InterruptedRunError
            It did not in time.
        SpoolForeignError
            It wants another token, speaks another version, or is no relay.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self._listed.is_set() or self._line.is_cut:
            self._check_going()
            if time.monotonic() > deadline:
                raise self._not_answering(timeout_seconds)
            await asyncio.sleep(LOOK_SECONDS)

    @asynccontextmanager
    async def hold(
        self, client: ClientInfo, timeout_seconds: float, most_bytes: int | None = None
    ) -> AsyncIterator[SpoolClient]:
        """Hold the spool; gives the client's side, with the dumps that lay at the server in it.

        Parameters
        ----------
        timeout_seconds
            How long to wait for a relay that is silent.
        most_bytes
            What those dumps may take here, at most half of the room; others are removed.

        Raises
        ------
        SpoolBusyError, SpoolMissingError, SpoolForeignError, InterruptedRunError
        """
        session = Session(client)
        try:
            await self._open(session, timeout_seconds, most_bytes)
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
        if rid.run != self._over:  # else its run is discarded
            self._releases.discard(rid)
        self._downloads.forget(rid)

    def discard_run(self, run: str) -> None:
        """Discard all requests of a run at the server too."""
        self._over = run
        self._releases.discard_run(run)
        self._downloads.forget_run(run)

    def trim_free(self, keep_bytes: int) -> None:
        """Have the server's free files trimmed too."""
        self._releases.trim_free(keep_bytes)

    def is_coming(self, rid: RequestId) -> bool:
        """Tell whether a dump may be finished there, and not be here yet."""
        return self._line.is_cut or self._downloads.is_coming(rid)

    @property
    def cut_seconds(self) -> float:
        """For how long the relay has not answered; 0 while it does."""
        return self._line.cut_seconds

    # --- the session --------------------------------------------------------------------------

    async def _open(self, session: Session, timeout_seconds: float, most_bytes: int | None) -> None:
        """Hold the spool, and wait until what lay there is here: it is salvaged once, at the start."""
        room_bytes = headroom_bytes(self.path) // 2
        room_bytes = min(room_bytes, most_bytes or room_bytes)
        coming = await self._begin(session, timeout_seconds, room_bytes)
        self._over = ""
        self._session = session
        self._downloads.add(coming)
        opened = time.monotonic()
        while any(self._downloads.is_coming(rid) for rid in coming):
            self._check_going()
            if time.monotonic() - max(opened, self._moved_at) > timeout_seconds:
                raise self._not_answering(timeout_seconds)
            await asyncio.sleep(LOOK_SECONDS)

    async def _begin(
        self, session: Session, timeout_seconds: float, room_bytes: int
    ) -> dict[RequestId, int]:
        """Have the relay hold the spool; return what lies there and has room here."""
        began = time.monotonic()
        with Wire(self._address, lambda: session.name) as wire:
            while True:
                self._check_going()
                try:
                    return await asyncio.to_thread(
                        begin, wire, session, self._downloads, room_bytes
                    )
                except (RelayAwayError, RelayRefusedError) as error:
                    self._line.bad(error)
                    waited_seconds = time.monotonic() - began
                    if not passes(error, waited_seconds) or waited_seconds > timeout_seconds:
                        if isinstance(error, RelayRefusedError):
                            raise spool_error(error) from error
                        raise self._not_answering(waited_seconds) from error
                await asyncio.sleep(RETRY_SECONDS)

    def _not_answering(self, seconds: float) -> InterruptedRunError:
        return InterruptedRunError(
            f"relay {self._address.url} did not answer for {seconds:.0f} s ({self._line.trouble}); "
            "start it on the server's host with `hsstore relay SPOOL`, then run the same command again"
        )

    def _check_going(self) -> None:
        self.raise_if_broken()
        if self._stop.is_set():
            raise SpoolMissingError("the mirror was closed")

    def _leave(self, session: Session) -> None:
        """Have the relay do what it was asked for, and tell it that we have left."""
        flushed = self.broken is None and self._releases.flush(FLUSH_SECONDS)
        self._session = None
        self._downloads.gone({})  # what is not here yet is not for us
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
            except (RelayAwayError, RelayRefusedError) as error:
                self._line.bad(error)
                known = self._listed.is_set()
                if isinstance(error, RelayRefusedError) and not (known and passes(error)):
                    self._break(spool_error(error))
                self._stop.wait(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
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
        session = self._session
        wait_seconds = LONGEST_WAIT_SECONDS if self._listed.is_set() else 0.0
        listing, now = self._wire.listing(seen=seen, wait=wait_seconds)
        if session and session is self._session and listing.holder != session.name:
            # The relay was restarted, or has not heard of us for long.
            self._hold_again(session)
        self._apply(listing, session)
        self._listed.set()
        return now

    def _hold_again(self, session: Session) -> None:
        try:
            self._wire.ask("POST", "/v1/session", session.body)
        except RelayRefusedError as error:
            if error.kind != Kind.NO_SPOOL:  # else its server was not started again yet
                raise
        else:
            log.info("relay %s holds the spool for this run again", self._address.url)

    def _apply(self, listing: Listing, session: Session | None) -> None:
        self._local.show_server(listing, self._server_json)
        if session is not None and session.client.run != self._over:
            self._downloads.gone(listing.finished)
            self._downloads.add(listing.finished, self._releases)
            self._local.show_files(listing, session.client.run, self._releases)
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
    def cut_seconds(self) -> float:
        return self._mirror.cut_seconds

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
        self._mirror.trim_free(keep_bytes)

    @override
    def cleanup(self, run: str) -> None:
        self._mirror.discard_run(run)
        super().cleanup(run)

    @override
    def _remove(self, rid: RequestId) -> None:
        super()._remove(rid)
        self._mirror.discard(rid)

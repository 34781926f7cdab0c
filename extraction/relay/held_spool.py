"""The server's spool, held by the relay in the name of a client that is elsewhere."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from extraction.relay.protocol import ORPHANED_SECONDS, Kind, Listing, RefusalError
from extraction.spool import (
    ClientInfo,
    SpoolBusyError,
    SpoolClient,
    SpoolForeignError,
    SpoolMissingError,
    SpoolView,
)
from extraction.spool.directory import CLIENT_JSON, FINISHED, SERVER_JSON

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator
    from pathlib import Path

    from extraction.spool import RequestId

log = logging.getLogger(__name__)

_LARGEST_REASON_BYTES: Final = 64 << 10


class _Client(SpoolClient):
    def let_go(self) -> None:
        """Unlock, and stay registered: the server goes on capturing for whoever comes back."""
        self._lock_file.release()


class _Lease:
    def __init__(self, session: str, client: ClientInfo, host: str, spool: _Client) -> None:
        self.session, self.client, self.host, self.spool = session, client, host, spool
        self.heard = time.monotonic()
        self.transport: asyncio.BaseTransport | None = None
        """The connection that the client listens on."""

    @property
    def idle_seconds(self) -> float:
        return time.monotonic() - self.heard

    def gives_way_to(self, client: ClientInfo) -> bool:
        """Tell whether another client may take its place.

        One whose connection broke, and that has not come back, may be dead. Only a run of the same
        store goes by that: another one would remove its dumps.
        """
        broken = self.transport is None or self.transport.is_closing()
        orphaned = broken and self.idle_seconds > ORPHANED_SECONDS
        return client.run == self.client.run or (orphaned and client.store == self.client.store)

    @override
    def __str__(self) -> str:
        return f"run {self.client.run} of host {self.host}"


class HeldSpool:
    """Who holds the spool, and what lies in it. Not for several threads."""

    def __init__(self, path: Path, lease_seconds: float) -> None:
        self.path = path
        self.lease_seconds = lease_seconds
        self._lease: _Lease | None = None

    def open(self, session: str, client: ClientInfo, host: str) -> None:
        """Hold the spool for a session; again for the same one: nothing new.

        Of the same run, a new one takes the place of the old, and what the old one sent may come late.

        Raises
        ------
        RefusalError
            Another run holds it, or a client of the server's own machine; there is none, or it is
            not ours.
        """
        lease = self._lease
        if lease is not None and not lease.gives_way_to(client):
            left = self.lease_seconds - lease.idle_seconds
            raise RefusalError(
                409,
                Kind.HELD,
                f"the spool {self.path} is held by {lease}, heard of {lease.idle_seconds:.0f} s ago; "
                f"wait for its end, or end it (its lease runs out in {left:.0f} s if it is dead)",
                idle_seconds=lease.idle_seconds,
            )
        if lease is None or lease.session != session:
            self._end("another session begins")
            with _refusals():
                self._lease = _Lease(session, client, host, _Client(self.path, client))
            log.info("held for %s, store %s", self._lease, client.store)
        self.renew(session)

    def renew(self, session: str) -> None:
        """Take note that a session was heard of."""
        if (lease := self._held_by(session)) is not None:
            lease.heard = time.monotonic()

    def listens(self, session: str, transport: asyncio.BaseTransport | None) -> None:
        """Take note of the connection on which a session waits for news."""
        if (lease := self._held_by(session)) is not None:
            lease.transport = transport

    def leave(self, session: str) -> None:
        """End a session, if it is the one that holds. What lies in the spool stays."""
        if self._held_by(session) is not None:
            self._end("it has left")

    def expire(self) -> None:
        """End a session that nobody has renewed for the time of a lease."""
        if self._lease is not None and self._lease.idle_seconds > self.lease_seconds:
            self._end(f"not heard of for {self._lease.idle_seconds:.0f} s")

    def let_go(self) -> None:
        """Unlock at the relay's end, so that the same run goes on with the next relay."""
        if self._lease is not None:
            self._lease.spool.let_go()
            self._lease = None

    def held_for(self, session: str) -> SpoolClient:
        """Return the client's side of the spool.

        Raises
        ------
        RefusalError
            Another session holds it, or none.
        """
        lease = self._held_by(session)
        if lease is None:
            raise RefusalError(
                409, Kind.LOST, "this session does not hold the spool: open it (again)"
            )
        return lease.spool

    def listing(self) -> Listing:
        """Look what is there now; nothing at all where there is no spool.

        Raises
        ------
        RefusalError
            It is not ours.
        """
        if self._lease is not None and not (self.path / CLIENT_JSON).exists():
            log.info("no more held for %s: the spool was made anew", self._lease)
            self.let_go()  # its client holds it again when it learns that
        with _refusals():
            try:
                return self._look(SpoolView(self.path))
            except (SpoolMissingError, FileNotFoundError):
                return Listing()

    def state(self) -> tuple[str, int]:
        """Return what is another as soon as a name comes or goes, or another session holds: cheap.

        That a server dies does not show.
        """
        try:
            return self._holder, self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return self._holder, 0

    def server_json(self) -> bytes:
        """Read what the server says of itself.

        Raises
        ------
        FileNotFoundError
        """
        return (self.path / SERVER_JSON).read_bytes()

    @property
    def _holder(self) -> str:
        return self._lease.session if self._lease else ""

    def _held_by(self, session: str) -> _Lease | None:
        return self._lease if self._holder == session else None

    def dump_path(self, rid: RequestId) -> Path:
        """Path of a finished dump."""
        return self.path / f"{rid}{FINISHED}"

    def _look(self, view: SpoolView) -> Listing:
        alive, scan = view.server_alive(), view.scan()
        oldest_first = sorted(scan.finished.values(), key=lambda file: file.modified_seconds)
        sizes = ((file.rid, _size_bytes(self.dump_path(file.rid))) for file in oldest_first)
        reasons = ((rid, _read_reason(view.directory.error(rid))) for rid in scan.errors)
        return Listing(
            alive=alive,
            info=_stamp(self.path / SERVER_JSON) if alive else "",
            holder=self._holder,
            finished={rid: size for rid, size in sizes if size},
            partial=tuple(sorted(scan.partial)),
            errors={rid: text for rid, text in reasons if text is not None},
            heartbeat=view.heartbeat() if alive else None,
            room_bytes=view.headroom_bytes(),
        )

    def _end(self, why: str) -> None:
        if self._lease is not None:
            log.info("no more held for %s: %s", self._lease, why)
            self._lease.spool.close()
            self._lease = None


@contextmanager
def _refusals() -> Iterator[None]:
    """Say to a client elsewhere what is wrong with the spool here."""
    try:
        yield
    except SpoolBusyError as error:
        message = f"{error}: a client on the server's own host; wait for its end, or end it"
        raise RefusalError(409, Kind.HELD, message, idle_seconds=0.0) from error
    except (SpoolMissingError, SpoolForeignError) as error:
        raise RefusalError(503, Kind.NO_SPOOL, f"on the relay's host: {error}") from error


def _size_bytes(path: Path) -> int:
    """Return the size of a file; 0 when it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_reason(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_REASON_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except FileNotFoundError:
        return ""
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}"

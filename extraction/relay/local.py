"""The local side of a mirror: a spool directory that looks as if its server were on this machine."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from extraction.spool import RequestId, SpoolForeignError
from extraction.spool.directory import (
    ERROR,
    FINISHED,
    FREE,
    HEARTBEAT,
    LIMIT,
    PART,
    SERVER_JSON,
    SERVER_LOCK,
    TEMPORARY,
    SpoolDirectory,
)
from extraction.spool.free import FreeFiles
from extraction.spool.heartbeat import HeartbeatWriter
from extraction.spool.lock import FileLock, read_holder

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator
    from pathlib import Path

    from extraction.relay.protocol import Listing
    from extraction.spool import Heartbeat

_OF_A_SERVER: Final = (SERVER_JSON, HEARTBEAT, LIMIT)


class LocalSpool:
    """The directory of one mirror. What a killed mirror left whole is used again.

    `show_server` and `show_files` are for one thread at a time.

    Attributes
    ----------
    directory : SpoolDirectory
    """

    def __init__(self, path: Path, relay: str) -> None:
        """Make the directory, or take over that of a dead mirror.

        Raises
        ------
        SpoolForeignError
            It is somebody else's, or a server's own.
        SpoolBusyError
            Another mirror lives there.
        """
        self._holder = {"pid": os.getpid(), "host": socket.gethostname(), "relay": relay}
        self.directory = SpoolDirectory.create(path)
        holder = read_holder(path / SERVER_LOCK)
        if holder and "relay" not in holder:
            raise SpoolForeignError(
                f"{path} is the spool of a server itself: --spool names where the mirror of a relay's is to "
                "be, an empty directory in shared memory"
            )
        self._mirror_lock = FileLock.acquire(
            path.with_name(path.name + ".lock"), mode=0o600, holder=self._holder
        )
        # Again: a mirror that ended meanwhile has removed it.
        self.directory = SpoolDirectory.create(path)
        self._server_lock: FileLock | None = None
        self._heartbeat: HeartbeatWriter | None = None
        self._beat_lock = threading.Lock()
        self._limit_bytes = -1
        self._announced = ""
        self._parts: set[RequestId] = set()
        self._failed: set[RequestId] = set()
        self._remove([*_OF_A_SERVER, *self._names(PART), *self._names(TEMPORARY)])

    def finished(self) -> set[RequestId]:
        """Return the dumps that are here and whole."""
        names = (name.removesuffix(FINISHED) for name in self._names(FINISHED))
        return {rid for rid in map(RequestId.parse, names) if rid is not None}

    def show_server(self, listing: Listing, read_json: Callable[[], bytes | None]) -> None:
        """Show whether a server is there, what it says of itself, and what room it has.

        Parameters
        ----------
        read_json
            Asks for server.json; None: it is gone.
        """
        if not listing.alive:
            self._let_go()
            return
        self._limit(listing.room_bytes)
        if self._server_lock is None:
            self._server_lock = FileLock.acquire(
                self.directory.path / SERVER_LOCK,
                mode=self.directory.file_mode,
                holder=self._holder,
            )
        if listing.info == self._announced:
            return
        self._retract()
        text = read_json() if listing.info else None
        if text is not None:
            self._announce(_without_log(text))
            self._announced = listing.info

    def show_files(self, listing: Listing, run: str, released: Container[RequestId]) -> None:
        """Show failed captures, and those of one run that are under way; not those released here."""
        for rid, reason in listing.errors.items():
            if rid not in self._failed and rid not in released:
                self.fail(rid, reason)
        self._failed = set(listing.errors)
        parts = {rid for rid in listing.partial if rid.run == run and rid not in released}
        for rid in parts - self._parts:
            with suppress(FileExistsError):  # never what is being fetched
                self.directory.part(rid).touch(self.directory.file_mode, exist_ok=False)
        for rid in self._parts - parts - listing.finished.keys():
            self.directory.part(rid).unlink(missing_ok=True)
        self._parts = parts

    def beat(self, beat: Heartbeat, coming: int) -> None:
        """Show progress: the server's, or bytes that came.

        Parameters
        ----------
        coming
            Dumps that are finished there and not here: they count as waiting to be written.
        """
        with self._beat_lock:
            if self._heartbeat is not None:
                self._heartbeat.beat(
                    forwards=beat.forwards,
                    rows=beat.rows,
                    queue_depth=beat.queue_depth + coming,
                    free_bytes=beat.free_bytes,
                )

    def fail(self, rid: RequestId, reason: str) -> None:
        """Show why there will be no dump."""
        path = self.directory.error(rid)
        try:
            self.directory.write(path, reason.encode())
        except OSError:
            # No page left for the reason: an empty file says "full", as the server's own does.
            os.close(self.directory.create_file(path))

    def close(self) -> None:
        """Remove all that is the mirror's, and the directory with it."""
        self._let_go()
        for kind in (PART, FINISHED, ERROR):
            self._remove(
                name for name in self._names(kind) if RequestId.is_one(name.removesuffix(kind))
            )
        self._remove([LIMIT])
        FreeFiles(self.directory.path / FREE).trim(0)
        self.directory.remove_if_empty()
        self._mirror_lock.release()

    def _limit(self, room_bytes: int) -> None:
        """Say how many bytes new files may take at the server."""
        if room_bytes != self._limit_bytes:
            with suppress(OSError):  # no room here to say it: it is advice
                self.directory.write(self.directory.path / LIMIT, str(room_bytes).encode())
                self._limit_bytes = room_bytes

    def _announce(self, server_json: bytes) -> None:
        with self._beat_lock:
            temporary = self.directory.path / (HEARTBEAT + TEMPORARY)
            self._heartbeat = HeartbeatWriter(self.directory.create_file(temporary))
            self._heartbeat.beat(forwards=0, rows=0, queue_depth=0, free_bytes=0)
            temporary.rename(self.directory.path / HEARTBEAT)
        self.directory.write(self.directory.path / SERVER_JSON, server_json)

    def _retract(self) -> None:
        """Take the announcement back: the server is another one now, or gone."""
        self._announced = ""
        self._remove([SERVER_JSON, HEARTBEAT])
        with self._beat_lock:
            if self._heartbeat is not None:
                self._heartbeat.close()
                self._heartbeat = None

    def _let_go(self) -> None:
        """Show that no server lives there."""
        self._retract()
        if self._server_lock is not None:
            self._server_lock.release()
            self._server_lock = None

    def _names(self, ending: str) -> Iterator[str]:
        with suppress(FileNotFoundError):
            for path in self.directory.path.iterdir():
                if path.name.endswith(ending):
                    yield path.name

    def _remove(self, names: Iterable[str]) -> None:
        for name in list(names):
            (self.directory.path / name).unlink(missing_ok=True)


def _without_log(server_json: bytes) -> bytes:
    """Leave out the path of the server's log: here it would name another file, or none."""
    try:
        content = json.loads(server_json)
        content["log_path"] = ""
    except (TypeError, ValueError):
        return server_json  # whoever reads it will say what is wrong
    return json.dumps(content, indent=1).encode()

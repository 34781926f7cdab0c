"""The local side of a mirror: a spool directory that looks as if its server were on this machine."""

from __future__ import annotations

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
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from extraction.spool import Heartbeat

_OF_A_SERVER: Final = (SERVER_JSON, HEARTBEAT, LIMIT)


class LocalSpool:
    """The directory of one mirror. What a killed mirror left whole is used again.

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
        self._remove([*_OF_A_SERVER, *self._names(PART), *self._names(TEMPORARY)])

    def finished(self) -> set[RequestId]:
        """Return the dumps that are here and whole."""
        names = (name.removesuffix(FINISHED) for name in self._names(FINISHED))
        return {rid for rid in map(RequestId.parse, names) if rid is not None}

    def hold(self) -> None:
        """Hold the server's lock: a server lives there."""
        if self._server_lock is None:
            self._server_lock = FileLock.acquire(
                self.directory.path / SERVER_LOCK,
                mode=self.directory.file_mode,
                holder=self._holder,
            )

    def announce(self, server_json: bytes) -> None:
        """Say what the server says of itself."""
        with self._beat_lock:
            if self._heartbeat is None:
                temporary = self.directory.path / (HEARTBEAT + TEMPORARY)
                self._heartbeat = HeartbeatWriter(self.directory.create_file(temporary))
                self._heartbeat.beat(forwards=0, rows=0, queue_depth=0, free_bytes=0)
                temporary.rename(self.directory.path / HEARTBEAT)
        self.directory.write(self.directory.path / SERVER_JSON, server_json)

    def retract(self) -> None:
        """Take the announcement back: the server is another one now, or gone."""
        self._remove([SERVER_JSON, HEARTBEAT])
        with self._beat_lock:
            if self._heartbeat is not None:
                self._heartbeat.close()
                self._heartbeat = None

    def let_go(self) -> None:
        """Let the server's lock go: no server lives there."""
        self.retract()
        if self._server_lock is not None:
            self._server_lock.release()
            self._server_lock = None

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

    def limit(self, room_bytes: int) -> None:
        """Say how many bytes new files may take at the server."""
        if room_bytes != self._limit_bytes:
            with suppress(OSError):  # no room here to say it: it is advice
                self.directory.write(self.directory.path / LIMIT, str(room_bytes).encode())
                self._limit_bytes = room_bytes

    def show_parts(self, rids: Iterable[RequestId]) -> None:
        """Show captures under way as empty files."""
        for rid in rids:
            with suppress(FileExistsError):  # never what is being fetched
                self.directory.part(rid).touch(self.directory.file_mode, exist_ok=False)

    def hide_parts(self, rids: Iterable[RequestId]) -> None:
        """Take such files away again."""
        for rid in rids:
            self.directory.part(rid).unlink(missing_ok=True)

    def fail(self, rid: RequestId, reason: str) -> None:
        """Show why there will be no dump."""
        self.directory.write(self.directory.error(rid), reason.encode())

    def close(self) -> None:
        """Remove all that is the mirror's, and the directory with it."""
        self.let_go()
        for kind in (PART, FINISHED, ERROR):
            self._remove(
                name for name in self._names(kind) if RequestId.is_one(name.removesuffix(kind))
            )
        self._remove([LIMIT])
        FreeFiles(self.directory.path / FREE).trim(0)
        self.directory.remove_if_empty()
        self._mirror_lock.release()

    def _names(self, ending: str) -> Iterator[str]:
        with suppress(FileNotFoundError):
            for path in self.directory.path.iterdir():
                if path.name.endswith(ending):
                    yield path.name

    def _remove(self, names: Iterable[str]) -> None:
        for name in list(names):
            (self.directory.path / name).unlink(missing_ok=True)

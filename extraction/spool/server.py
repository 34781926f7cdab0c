"""The server's side of a spool: one process owns and announces it, further ones may join.

Engines with data parallelism compute in several processes. The first one holds the lock and writes
`server.json`; the others attach to it. They share nothing but the directory: a request is computed
by one of them, and only that one writes its files.
"""
# typing.override comes with Python 3.12, and nothing but the standard library is here.

from __future__ import annotations

import os
import socket
import time
import uuid
from typing import TYPE_CHECKING, Final

from extraction.spool.directory import (
    HEARTBEAT,
    PART,
    SERVER_JSON,
    SERVER_LOCK,
    TEMPORARY,
    SpoolDirectory,
    further_heartbeat,
    is_temporary_error,
    writer_of,
)
from extraction.spool.errors import NoServerError, SpoolMissingError
from extraction.spool.info import ServerInfo
from extraction.spool.lock import FileLock, is_held, read_holder
from extraction.spool.names import RequestId
from extraction.spool.writer import SpoolWriter

if TYPE_CHECKING:
    from pathlib import Path

_POLL_SECONDS: Final = 0.05


class SpoolServer(SpoolWriter):
    """One server's exclusive use of a spool. A context manager; safe to use from several threads.

    Attributes
    ----------
    directory : SpoolDirectory
    instance : str
        UUID of this start of the server.
    removed : tuple of str
        Names of the files that a dead server had left and that were removed.
    """

    def __init__(
        self, path: Path, *, group: int | None = None, instance: str | None = None
    ) -> None:
        """Create or open the spool and lock it; remove what a dead server left unfinished.

        Parameters
        ----------
        path
            The spool directory.
        group
            Share the spool with this group id, for a client that runs as another user.
        instance
            UUID of this start, where further processes know it too; a new one by default.

        Raises
        ------
        SpoolForeignError
            The directory is not ours, or open to others.
        SpoolBusyError
            Another server holds it.
        """
        super().__init__(SpoolDirectory.create(path, group=group), instance or str(uuid.uuid4()))
        self._lock_file = FileLock.acquire(
            path / SERVER_LOCK,
            mode=self.directory.file_mode,
            holder={"pid": os.getpid(), "host": socket.gethostname(), "instance": self.instance},
        )
        self.removed = tuple(sorted(_remove_leftovers(path, self.instance)))

    def announce(self, info: ServerInfo) -> None:
        """Say what this server captures, once its model is loaded. From now on it captures.

        Raises
        ------
        OSError
            The spool has no room even for that.
        """
        self._info = info
        self._start_beating(HEARTBEAT)
        self.directory.write(self.directory.path / SERVER_JSON, info.to_json())

    def attached(self) -> frozenset[int]:
        """Return the numbers of the further writers that have joined."""
        names = (path.name for path in self.directory.path.iterdir())
        writers = (writer_of(name) for name in names)
        return frozenset(one[0] for one in writers if one and one[1] == self.instance)

    def wait_for_attached(self, writers: int, timeout_seconds: float) -> None:
        """Wait until the further writers 1..`writers` have joined: what they compute would be lost.

        Raises
        ------
        NoServerError
            One did not in time.
        """
        wanted = frozenset(range(1, writers + 1))
        deadline = time.monotonic() + timeout_seconds
        while missing := wanted - self.attached():
            if time.monotonic() > deadline:
                raise NoServerError(
                    f"of {writers} further processes that compute, {sorted(missing)} have not "
                    f"attached to {self.directory.path} in {timeout_seconds:.0f} s: see their logs"
                )
            time.sleep(_POLL_SECONDS)

    def retract(self) -> None:
        """Take the announcement back: clients that come now find no server."""
        (self.directory.path / SERVER_JSON).unlink(missing_ok=True)

    def _withdraw(self) -> None:  # type: ignore[explicit-override]
        self.retract()
        self._stop_beating(HEARTBEAT)
        self._lock_file.release()
        self.directory.remove_if_empty()


class AttachedServer(SpoolWriter):
    """A further process of the server that holds the spool."""

    def __init__(self, path: Path, instance: str, number: int, *, timeout_seconds: float) -> None:
        """Wait for the process that owns the spool; `join` tells it that this one is there.

        Parameters
        ----------
        instance
            UUID that the owner was started with.
        number
            Which one this is, from 1: different for every further writer.

        Raises
        ------
        NoServerError
            No process of this start holds the spool.
        SpoolForeignError
            The directory is not ours, or open to others.
        """
        super().__init__(_wait_for_owner(path, instance, timeout_seconds), instance)
        self._name = further_heartbeat(number, instance)

    def join(self) -> None:
        """Say that this process captures from now on.

        Raises
        ------
        OSError
            The spool has no room even for that.
        """
        self._start_beating(self._name)

    def _announced(self) -> ServerInfo | None:  # type: ignore[explicit-override]
        if self._info is None:
            try:
                info = ServerInfo.from_json((self.directory.path / SERVER_JSON).read_bytes())
            except FileNotFoundError:
                return None
            self._info = info if info.instance == self.instance else None
        return self._info

    def _withdraw(self) -> None:  # type: ignore[explicit-override]
        self._stop_beating(self._name)
        self.directory.remove_if_empty()


def _wait_for_owner(path: Path, instance: str, timeout_seconds: float) -> SpoolDirectory:
    lock, deadline = path / SERVER_LOCK, time.monotonic() + timeout_seconds
    while not (is_held(lock) and read_holder(lock).get("instance") == instance):
        if time.monotonic() > deadline:
            raise NoServerError(
                f"no process of this server ({instance}) holds {lock} after {timeout_seconds:.0f} s"
                f"; its holder is {read_holder(lock) or 'nobody'}: see the log of data-parallel "
                "rank 0"
            )
        time.sleep(_POLL_SECONDS)
    try:
        return SpoolDirectory.open(path)
    except SpoolMissingError as error:
        raise NoServerError(str(error)) from None


def _remove_leftovers(path: Path, instance: str) -> list[str]:
    """Remove what only its dead server could have continued; returns the names."""
    removed = []
    for entry in path.iterdir():
        partial = entry.suffix == PART and RequestId.parse(entry.stem) is not None
        announcement = entry.name.removesuffix(TEMPORARY) in {SERVER_JSON, HEARTBEAT}
        writer = writer_of(entry.name)  # a process of this start may have been faster than we
        dead = writer is not None and writer[1] != instance
        if partial or announcement or dead or is_temporary_error(entry.name):
            entry.unlink(missing_ok=True)
            removed.append(entry.name)
    return removed

"""The client's side of a spool: find dumps, read them, give their memory back.

The client owns deletion. Names it does not know are reported and never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from extraction.spool.directory import (
    CLIENT_JSON,
    CLIENT_LOCK,
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
    is_own,
    writer_of,
)
from extraction.spool.dump import Dump
from extraction.spool.errors import DumpError, DumpInUseError, ErrorReason, NoServerError
from extraction.spool.free import FreeFiles
from extraction.spool.heartbeat import Heartbeat, read_heartbeat, sum_heartbeats
from extraction.spool.info import ClientInfo, ServerInfo
from extraction.spool.lock import FileLock, is_held
from extraction.spool.memory import headroom_bytes
from extraction.spool.names import RequestId

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file in the spool that belongs to a request."""

    rid: RequestId
    allocated_bytes: int
    """Memory it holds."""
    modified_seconds: float
    """Time of its last change, since 1970."""


@dataclass(frozen=True, slots=True)
class SpoolScan:
    """What lies in a spool, of every run, at one moment."""

    finished: dict[RequestId, SpoolFile] = field(default_factory=dict)
    partial: dict[RequestId, SpoolFile] = field(default_factory=dict)
    errors: dict[RequestId, SpoolFile] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    """Names that are not of this protocol."""
    free_bytes: int = 0
    """Memory held by files that were given back."""

    @property
    def allocated_bytes(self) -> int:
        """All memory that the spool's files hold: finished, partial and free."""
        files = [*self.finished.values(), *self.partial.values(), *self.errors.values()]
        return self.free_bytes + sum(file.allocated_bytes for file in files)


@dataclass(frozen=True, slots=True)
class CaptureFailure:
    """Why the server gave a request up: the content of its `.error` file."""

    rid: RequestId
    reason: str
    """A value of `ErrorReason`, or one that a newer server knows."""
    detail: str


class SpoolView:
    """Look at a spool without taking part: what `doctor` and `status` need."""

    def __init__(self, path: Path) -> None:
        """Check the directory.

        Raises
        ------
        SpoolMissingError, SpoolForeignError
        """
        self.directory = SpoolDirectory.open(path)
        self._free = FreeFiles(path / FREE)

    def server_alive(self) -> bool:
        """Tell whether a live process holds the server's lock (it may still be loading)."""
        return is_held(self.directory.path / SERVER_LOCK)

    def server(self) -> ServerInfo | None:
        """Read what the live server says of itself; None while there is none, or it is loading.

        Raises
        ------
        NoServerError
            There is one, and it speaks another version of the protocol.
        """
        path = self.directory.path / SERVER_JSON
        if not self.server_alive():
            return None
        try:
            return ServerInfo.from_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise NoServerError(f"cannot use {path}: {error}") from None

    def wait_for_server(self, timeout_seconds: float) -> ServerInfo:
        """Wait until a server has announced itself.

        Raises
        ------
        NoServerError
            None did, or it speaks another version of the protocol.
        """
        deadline = time.monotonic() + timeout_seconds
        while (info := self.server()) is None:
            if time.monotonic() >= deadline:
                state = "is still loading" if self.server_alive() else "is not running"
                raise NoServerError(
                    f"the server of spool {self.directory.path} {state}: "
                    "start it with `hsstore serve`, or give its own directory with --spool"
                )
            time.sleep(_POLL_SECONDS)
        return info

    def heartbeat(self) -> Heartbeat | None:
        """Read the server's latest beat: the sum, where it computes in several processes."""
        first = read_heartbeat(self.directory.path / HEARTBEAT)
        if first is None:
            return None
        names = filter(_is_further_heartbeat, self._names())
        further = (read_heartbeat(self.directory.path / name) for name in names)
        return sum_heartbeats([first, *(beat for beat in further if beat is not None)])

    def scan(self) -> SpoolScan:
        """List the files of all runs, dead ones included; none where the spool was removed."""
        scan = SpoolScan(free_bytes=self._free.allocated_bytes())
        kinds = {FINISHED: scan.finished, PART: scan.partial, ERROR: scan.errors}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory.path) as entries:
            for entry in entries:
                stem, dot, kind = entry.name.rpartition(".")
                rid = RequestId.parse(stem)
                if rid is not None and dot + kind in kinds:
                    _record(entry, rid, kinds[dot + kind])
                elif not is_own(entry.name):
                    scan.foreign.append(entry.name)
        return scan

    def free_bytes(self) -> int:
        """Count the memory held by files that were given back."""
        return self._free.allocated_bytes()

    def headroom_bytes(self) -> int:
        """Count the bytes that new files may take: the server judges by the same number.

        Of a spool that mirrors another machine's: what both may take.
        """
        return min(self.rooms_bytes())

    def rooms_bytes(self) -> tuple[int, int]:
        """Count the bytes that new files may take here, and at the server: the same on one machine."""
        here_bytes = headroom_bytes(self.directory.path)
        try:
            return here_bytes, int((self.directory.path / LIMIT).read_bytes())
        except FileNotFoundError:
            return here_bytes, here_bytes

    def _names(self) -> list[str]:
        return os.listdir(self.directory.path)  # noqa: PTH208 - hundreds, again and again


class SpoolClient(SpoolView):
    """One client's exclusive use of a spool. A context manager."""

    def __init__(self, path: Path, client: ClientInfo) -> None:
        """Lock the spool and register, so that the server captures this run's requests.

        Raises
        ------
        SpoolMissingError, SpoolForeignError
            There is no such spool, or it is not ours.
        SpoolBusyError
            Another client holds it; the message says which run and process.
        OSError
            Its memory is full, most of all. It is not held then.
        """
        super().__init__(path)
        self._open: dict[RequestId, Dump] = {}
        self._lock_file = FileLock.acquire(
            path / CLIENT_LOCK,
            mode=self.directory.file_mode,
            holder={"run": client.run, "pid": os.getpid(), "host": socket.gethostname()},
        )
        try:
            self.directory.write(path / CLIENT_JSON, client.to_json())
        except OSError:
            self._lock_file.release()
            raise

    def settled(self, rids: Collection[RequestId]) -> tuple[list[RequestId], list[RequestId]]:
        """Tell which of these requests have a finished dump, and which have a reason why not.

        Cheaper than a scan: a client with many requests does this all the time.
        """
        names = frozenset(self._names())
        finished = [rid for rid in rids if f"{rid}{FINISHED}" in names]
        return finished, [rid for rid in rids if f"{rid}{ERROR}" in names]

    def is_coming(self, rid: RequestId) -> bool:  # noqa: ARG002  # a mirrored spool knows
        """Tell whether a dump may be finished at the server, and not be here yet."""
        return False

    def cut_seconds(self) -> float:
        """Return for how long the line to the server's machine has been cut."""
        return 0.0

    def open_dump(self, rid: RequestId) -> Dump:
        """Map a finished dump and check its header. Close it before it is given back.

        Raises
        ------
        DumpError
            It is gone, truncated, or not what its name says.
        """
        try:
            dump = Dump(rid, self.directory.finished(rid))
        except FileNotFoundError:
            raise DumpError(f"{rid}: somebody removed this dump from the spool") from None
        self._open[rid] = dump
        return dump

    def give_back(self, rid: RequestId) -> None:
        """Let the server reuse the file of a finished dump, if nobody has removed it.

        Raises
        ------
        DumpInUseError
            It is still mapped here: the server would write into what is being read.
        """
        self._check_closed(rid)
        with contextlib.suppress(FileNotFoundError):
            self.directory.finished(rid).rename(self.directory.free(rid))

    def discard(self, rid: RequestId) -> None:
        """Remove all that is there of a request, whatever its state.

        The server stops capturing a request whose `.part` was removed.
        """
        self._check_closed(rid)
        self._remove(rid)

    def take_error(self, rid: RequestId) -> CaptureFailure:
        """Read and remove the reason why there is no dump.

        Raises
        ------
        FileNotFoundError
            There is none.
        """
        path = self.directory.error(rid)
        text = path.read_bytes()
        path.unlink()
        if not text:
            return CaptureFailure(rid, ErrorReason.FULL, "no room left even for the reason")
        try:
            content = json.loads(text)
            return CaptureFailure(rid, str(content["reason"]), str(content["detail"]))
        except (ValueError, KeyError, TypeError) as error:
            return CaptureFailure(rid, ErrorReason.ENGINE, f"unreadable reason: {error!r}")

    def trim_free(self, keep_bytes: int) -> None:
        """Remove free files until they hold at most `keep_bytes`."""
        self._free.trim(keep_bytes)

    def close(self) -> None:
        """Leave: unregister, remove the free files, unlock. Dumps stay, to be salvaged."""
        (self.directory.path / CLIENT_JSON).unlink(missing_ok=True)
        self._free.trim(0)
        self._lock_file.release()
        self.directory.remove_if_empty()

    def cleanup(self, run: str) -> None:
        """Remove every file of one run's requests, finished dumps included; they may be gone.

        Also those that are mapped: the run is over, and only a server that writes into the file
        could change what a mapping shows.
        """
        scan = self.scan()
        for rid in {*scan.finished, *scan.partial, *scan.errors}:
            if rid.run == run:
                self._remove(rid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remove(self, rid: RequestId) -> None:
        for path in (self.directory.part, self.directory.finished, self.directory.error):
            path(rid).unlink(missing_ok=True)

    def _check_closed(self, rid: RequestId) -> None:
        dump = self._open.get(rid)
        if dump is not None and not dump.closed:
            raise DumpInUseError(f"{rid}: close the dump before its file goes")
        self._open.pop(rid, None)


def _record(entry: os.DirEntry[str], rid: RequestId, files: dict[RequestId, SpoolFile]) -> None:
    try:
        status = entry.stat()
    except FileNotFoundError:
        return  # renamed meanwhile: the next scan shows it
    files[rid] = SpoolFile(rid, status.st_blocks * 512, status.st_mtime)


def _is_further_heartbeat(name: str) -> bool:
    if not name.startswith(HEARTBEAT):  # nearly all names are those of dumps
        return False
    return writer_of(name) is not None and not name.endswith(TEMPORARY)

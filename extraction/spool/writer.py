"""What every writing process of a server does with a spool: capture rows, and beat.

Invariant: no capture ends without a trace. It becomes a finished dump, an `.error` file with the
reason, or it was given up by the client itself. Nothing here raises for what a request or a full
spool did: an exception in an inference server's loop would kill the server.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections import OrderedDict
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from extraction.spool.capture import Capture
from extraction.spool.directory import CLIENT_JSON, TEMPORARY, SpoolDirectory
from extraction.spool.dump import DumpLayout, DumpMetadata
from extraction.spool.errors import CaptureError, ErrorReason
from extraction.spool.heartbeat import HeartbeatWriter
from extraction.spool.info import ClientInfo, ServerInfo
from extraction.spool.names import RequestId

if TYPE_CHECKING:
    import numpy.typing as npt

logger = logging.getLogger(__name__)

_REMEMBERED: Final = 20_000
"""Ended request ids that are remembered, so that late rows of theirs are ignored."""

_Registration: TypeAlias = tuple[tuple[int, int] | None, ClientInfo | None]
"""Which `client.json` was read last, inode and time of change, and what it says."""


class PutState(Enum):
    """What became of a piece."""

    PARTIAL = auto()
    """Stored; rows are still missing."""
    FINISHED = auto()
    """It was the last one: the dump is visible to the client."""
    FAILED = auto()
    """The capture has ended as an `.error` file."""
    IGNORED = auto()
    """Not a request of this spool's client, or one that has already ended."""


class SpoolWriter:
    """The part that all writers of a spool share. A context manager; safe to use from threads.

    Attributes
    ----------
    directory : SpoolDirectory
    instance : str
        UUID of this start of the server.
    """

    def __init__(self, directory: SpoolDirectory, instance: str) -> None:
        self.directory = directory
        self.instance = instance
        self._guard = threading.RLock()
        self._open: dict[RequestId, Capture] = {}
        self._ended: OrderedDict[RequestId, None] = OrderedDict()
        self._registration: _Registration = (None, None)
        self._info: ServerInfo | None = None
        self._heartbeat: HeartbeatWriter | None = None
        self._rows = 0

    def beat(self, *, forwards: int, queue_depth: int) -> None:
        """Show progress: to be called where the work is done, never from a timer."""
        if self._heartbeat is None:
            return
        try:
            status = os.statvfs(self.directory.path)
        except FileNotFoundError:
            return  # the spool was removed under us: nobody looks any more
        self._heartbeat.beat(
            forwards=forwards,
            rows=self._rows,
            queue_depth=queue_depth,
            free_bytes=status.f_bavail * status.f_frsize,
        )

    def is_ours(self, rid: str) -> bool:
        """Tell whether `rid` is a request of the client that is registered now. Cheap."""
        return self._ours(rid) is not None

    def wanted(self, rid: str) -> RequestId | None:
        """Read the id of a request whose rows are still of use; None for all others. Cheap.

        Takes no lock: an inference server's loop may ask for every request of every forward.
        """
        request = self._ours(rid)
        return None if request is None or request in self._ended else request

    def put(
        self, rid: str, start: int, hidden: npt.NDArray[Any], input_ids: npt.NDArray[Any]
    ) -> PutState:
        """Store rows [start, start + n) of a request; in any order, also again.

        Parameters
        ----------
        rid
            The request's id, as the client sent it; alien ones are ignored.
        start
            Position of the first row in the sequence.
        hidden
            Shape (n, slots, hidden), the announced dtype; uint16 or int16 bits for bfloat16.
        input_ids
            Shape (n,), the tokens these rows belong to.
        """
        with self._guard:
            self.drop_unwanted()
            request = self.wanted(rid)
            if request is None:
                return PutState.IGNORED
            try:
                return self._store(request, start, hidden, input_ids)
            except CaptureError as error:
                self._fail(request, error.reason, str(error))
            except OSError as error:
                self._fail(request, ErrorReason.ENGINE, f"the spool refused a write: {error}")
            return PutState.FAILED

    def seal(self, rid: str) -> None:
        """Say that no more rows will come: if some are missing, the capture fails INCOMPLETE."""
        with self._guard:
            request = RequestId.parse(rid)
            capture = self._open.get(request) if request else None
            if request is not None and capture is not None:
                self._fail(request, ErrorReason.INCOMPLETE, capture.coverage.describe())

    def fail(self, rid: str, reason: ErrorReason, detail: str) -> None:
        """End a request of our client as an `.error` file; later rows of it are ignored."""
        with self._guard:
            if (request := self.wanted(rid)) is not None:
                self._fail(request, reason, detail)

    def abort(self, rid: str) -> None:
        """End a request without a trace: its client asked for that."""
        with self._guard:
            if (request := self._ours(rid)) is not None:
                self._end(request)

    def drop_unwanted(self) -> None:
        """End captures whose client is gone or has removed the file: they hold memory."""
        with self._guard:
            client = self._registered_client()
            for request, capture in list(self._open.items()):
                if client is None or request.run != client.run or not capture.still_wanted():
                    self._end(request)

    def close(self) -> None:
        """Drop what is unfinished, and withdraw. Finished dumps stay."""
        with self._guard:
            for request in list(self._open):
                self._end(request)
            self._withdraw()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _withdraw(self) -> None:
        """Remove what this process alone put there."""
        raise NotImplementedError

    def _announced(self) -> ServerInfo | None:
        """Return what the server says of itself; None before it has."""
        return self._info

    def _start_beating(self, name: str) -> None:
        """Make a heartbeat file, complete from the moment it has its name."""
        temporary = self.directory.path / (name + TEMPORARY)
        self._heartbeat = HeartbeatWriter(self.directory.create_file(temporary))
        self.beat(forwards=0, queue_depth=0)
        temporary.rename(self.directory.path / name)

    def _stop_beating(self, name: str) -> None:
        (self.directory.path / name).unlink(missing_ok=True)
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None

    def _ours(self, rid: str) -> RequestId | None:
        request = RequestId.parse(rid)  # first: most ids are somebody else's
        if request is None:
            return None
        client = self._registered_client()
        return request if client is not None and request.run == client.run else None

    def _store(
        self,
        request: RequestId,
        start: int,
        hidden: npt.NDArray[Any],
        input_ids: npt.NDArray[Any],
    ) -> PutState:
        capture = self._open.get(request)
        if capture is None:
            capture = self._open[request] = self._begin(request)
        capture.write(start, hidden, input_ids)
        self._rows += len(input_ids)
        if not capture.coverage.complete:
            return PutState.PARTIAL
        try:
            capture.finish()
        except FileNotFoundError:  # its client has said no meanwhile
            self._end(request)
            return PutState.IGNORED
        self._end(request)
        return PutState.FINISHED

    def _begin(self, request: RequestId) -> Capture:
        info, client = self._announced(), self._registered_client()
        if info is None or client is None:
            raise CaptureError(ErrorReason.ENGINE, "rows before the server announced itself")
        layout = DumpLayout(request.rows, info.slots, info.hidden, info.dtype)
        metadata = DumpMetadata(str(request), self.instance, info.capture_hash, client.store)
        return Capture(request, self.directory, layout, metadata)

    def _fail(self, request: RequestId, reason: ErrorReason, detail: str) -> None:
        self._end(request)  # first: it frees the memory that the error file may need
        logger.warning("capture of %s failed: %s: %s", request, reason, detail)
        if not self.is_ours(str(request)):
            return  # its client has left meanwhile: nobody would ever remove the file
        content = {"reason": reason, "detail": detail, "instance": self.instance}
        path = self.directory.error(request)
        try:
            self.directory.write(path, json.dumps(content).encode())
        except OSError:
            # No page left for the reason. A name needs none, and an empty file says "full".
            with contextlib.suppress(OSError):
                os.close(self.directory.create_file(path))

    def _end(self, request: RequestId) -> None:
        capture = self._open.pop(request, None)
        if capture is not None:
            capture.drop()
        self._ended[request] = None
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def _registered_client(self) -> ClientInfo | None:
        """Read `client.json` again when it is another file than the last time."""
        path = self.directory.path / CLIENT_JSON
        known, client = self._registration
        registration: _Registration = (None, None)
        try:
            status = path.stat()
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp == known:
                return client
            registration = (stamp, ClientInfo.from_json(path.read_bytes()))
        except FileNotFoundError:
            pass
        except (OSError, TypeError, ValueError) as error:
            logger.warning("%s is unreadable, capturing nothing: %s", path, error)
        self._registration = registration  # one assignment: other threads see a pair that fits
        return registration[1]

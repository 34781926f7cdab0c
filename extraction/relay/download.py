"""Fetch dumps from a relay: several at once, each on a connection of its own, whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

import xxhash

from extraction.relay.protocol import Kind
from extraction.relay.wire import RelayAwayError, RelayRefusedError, Wire
from extraction.spool import CaptureError, ErrorReason
from extraction.spool.capture import reserve_file, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from extraction.relay.local import LocalSpool
    from extraction.spool import RequestId

log = logging.getLogger(__name__)

CONNECTIONS: Final = 4
PIECE_BYTES: Final = 256 << 10
"""Read, hashed and written at once: it stays in the processor's cache."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
ROOM_SECONDS: Final = 0.1
JOIN_SECONDS: Final = 0.5
SAY_SECONDS: Final = 15.0
SPOILT_AGAIN: Final = 3
"""So often in a row a dump may come with another digest before it is given up."""


class _NotWantedError(Exception):
    """Nobody waits for this dump any more, or the relay does not have it."""


class Downloads:
    """The dumps that are finished at the server and not here. Safe to use from threads.

    Parameters
    ----------
    wire
        Makes a connection.
    on_progress
        Called when bytes have come, from any thread.
    """

    def __init__(
        self, local: LocalSpool, wire: Callable[[], Wire], on_progress: Callable[[], object]
    ) -> None:
        self._local = local
        self._wire = wire
        self._on_progress = on_progress
        self._changed = threading.Condition()  # its lock is re-entrant
        self._waiting: dict[RequestId, int] = {}
        self._busy: set[RequestId] = set()
        self._have = local.finished()
        self._skipped: dict[RequestId, int] = {}
        self._run = ""
        self._stop = threading.Event()
        self._said = 0.0
        self._wires: list[Wire] = []
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name=f"relay-download-{number}")
            for number in range(CONNECTIONS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def coming(self) -> int:
        """How many dumps are finished there and not here."""
        return len(self._waiting) + len(self._busy)

    def is_coming(self, rid: RequestId) -> bool:
        """Tell whether a dump is one of them."""
        return rid in self._waiting or rid in self._busy

    def all_coming(self) -> set[RequestId]:
        """Return all of them."""
        with self._changed:
            return {*self._waiting, *self._busy}

    def add(self, dumps: dict[RequestId, int], released: Container[object] = ()) -> None:
        """Fetch these, by size in bytes; those that are here, or on their way, are left out.

        Parameters
        ----------
        released
            Those that are not to be fetched; who adds one there calls `forget` after that.
        """
        with self._changed:
            for rid, size_bytes in dumps.items():
                known = rid in self._have or rid in self._busy or rid in self._skipped
                if not known and rid not in released:
                    self._waiting.setdefault(rid, size_bytes)
            self._changed.notify_all()

    def forget(self, rid: RequestId) -> None:
        """Nobody wants this one any more, wherever it is."""
        with self._changed:
            self._waiting.pop(rid, None)
            self._busy.discard(rid)
            self._have.discard(rid)

    def forget_run(self, run: str) -> None:
        """Nobody wants any of this run any more."""
        with self._changed:
            wanted = [*self._waiting, *self._busy, *self._have]
            for rid in wanted:
                if rid.run == run:
                    self.forget(rid)

    def gone(self, there: dict[RequestId, int]) -> None:
        """Fetch no more what is not there any more."""
        with self._changed:
            for rid in self._waiting.keys() - there.keys():
                del self._waiting[rid]

    def wait_for(self, rids: set[RequestId], stop: threading.Event) -> int:
        """Wait until these are here, or have no room here; returns the bytes of those."""
        with self._changed:
            while not stop.is_set() and any(self.is_coming(rid) for rid in rids):
                self._changed.wait(ROOM_SECONDS)
            return sum(size for rid, size in self._skipped.items() if rid in rids)

    def wait_for_room_of(self, run: str) -> None:
        """From now on, wait for room for the dumps of this run only; others are left where they are."""
        self._run = run

    def close(self) -> None:
        """Stop, in the middle of whatever it is."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
            wires = list(self._wires)
        for wire in wires:
            wire.close()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)  # one that connects to nowhere ends by itself

    # --- the threads --------------------------------------------------------------------------

    def _work(self) -> None:
        with self._wire() as wire:
            with self._changed:
                self._wires.append(wire)
            buffer = bytearray(PIECE_BYTES)
            while (taken := self._take()) is not None:
                try:
                    self._fetch(wire, *taken, buffer)
                except _NotWantedError:
                    pass
                except Exception:  # a bug, or the directory is gone: the others go on
                    log.exception("dump %s could not be fetched", taken[0])
                finally:
                    self._done(taken[0])

    def _take(self) -> tuple[RequestId, int] | None:
        with self._changed:
            while not self._waiting and not self._stop.is_set():
                self._changed.wait()
            if self._stop.is_set():
                return None
            rid = next(iter(self._waiting))
            self._busy.add(rid)
            return rid, self._waiting.pop(rid)

    def _done(self, rid: RequestId) -> None:
        with self._changed:
            self._busy.discard(rid)
            self._changed.notify_all()

    def _check_wanted(self, rid: RequestId) -> None:
        if self._stop.is_set() or rid not in self._busy:
            raise _NotWantedError

    def _fetch(self, wire: Wire, rid: RequestId, size_bytes: int, buffer: bytearray) -> None:
        part = self._local.directory.part(rid)
        descriptor = self._reserve(rid, size_bytes)
        try:
            if not self._receive_right(wire, descriptor, rid, size_bytes, buffer):
                self._have.add(rid)  # it is not to be fetched again
                reason = {"reason": ErrorReason.ENGINE, "detail": "came spoilt from the relay"}
                self._local.fail(rid, json.dumps(reason))
                return
            with self._changed:
                self._check_wanted(rid)
                part.rename(self._local.directory.finished(rid))
                self._have.add(rid)
        except FileNotFoundError:  # the client has removed it
            raise _NotWantedError from None
        finally:
            os.close(descriptor)
            part.unlink(missing_ok=True)

    def _reserve(self, rid: RequestId, size_bytes: int) -> int:
        while True:
            self._check_wanted(rid)
            try:
                return reserve_file(
                    self._local.directory.part(rid), self._local.directory, size_bytes
                )
            except CaptureError as error:
                if rid.run != self._run:
                    self._skipped[rid] = size_bytes
                    raise _NotWantedError from None
                self._say_no_room(rid, error)
            self._stop.wait(ROOM_SECONDS)

    def _say_no_room(self, rid: RequestId, error: CaptureError) -> None:
        now = time.monotonic()
        if now - self._said > SAY_SECONDS:
            self._said = now
            log.warning("dump %s waits at the server, there is no room for it here: %s", rid, error)

    def _receive_right(
        self, wire: Wire, descriptor: int, rid: RequestId, size_bytes: int, buffer: bytearray
    ) -> bool:
        for _ in range(SPOILT_AGAIN):
            if self._receive(wire, descriptor, rid, size_bytes, buffer):
                return True
            log.warning("dump %s came with another digest than it has at the server", rid)
        return False

    def _receive(
        self, wire: Wire, descriptor: int, rid: RequestId, size_bytes: int, buffer: bytearray
    ) -> bool:
        """Fetch all bytes, however often the line is cut; tell whether they are the right ones."""
        progress = _Progress(descriptor)
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            self._check_wanted(rid)
            before_bytes = progress.at
            try:
                while progress.at < size_bytes:
                    self._read(wire, rid, size_bytes, progress, buffer)
                digest = wire.ask_json("GET", f"/v1/dumps/{rid}/digest")
            except RelayAwayError as error:
                log.debug("dump %s was cut at %d bytes: %s", rid, progress.at, error)
            except RelayRefusedError as error:
                if error.kind == Kind.MISSING:
                    raise _NotWantedError from error
                # Not ours to judge: the mirror opens the session again, or ends.
            else:
                return bool(digest == {"size_bytes": size_bytes, "xxh3_128": progress.digest()})
            pause_seconds = FIRST_PAUSE_SECONDS if progress.at > before_bytes else pause_seconds
            self._stop.wait(pause_seconds)
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

    def _read(
        self,
        wire: Wire,
        rid: RequestId,
        size_bytes: int,
        progress: _Progress,
        buffer: bytearray,
    ) -> None:
        view = memoryview(buffer)
        with wire.dump(rid, progress.at, size_bytes) as response:
            while progress.at < size_bytes:
                length = response.readinto(view[: min(PIECE_BYTES, size_bytes - progress.at)])
                if not length:
                    raise RelayAwayError("the answer ended early")
                progress.add(view[:length])
                self._on_progress()
                self._check_wanted(rid)


class _Progress:
    """What has come of a dump: where the next byte goes, and the digest so far."""

    def __init__(self, descriptor: int) -> None:
        self.at = 0
        self._descriptor = descriptor
        self._hasher = xxhash.xxh3_128()

    def add(self, piece: memoryview) -> None:
        write_all(self._descriptor, piece, self.at)
        self._hasher.update(piece)
        self.at += len(piece)

    def digest(self) -> str:
        return str(self._hasher.hexdigest())

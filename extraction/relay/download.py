"""Fetch dumps from a relay: several at once, each on a connection of its own, whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from dataclasses import dataclass
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
FULL_SECONDS: Final = 15.0
"""So long a dump waits for room here; then its capture counts as one that found none."""
JOIN_SECONDS: Final = 0.5
SPOILT_AGAIN: Final = 3
"""So often in a row a dump may come with another digest before it is given up."""


class _NotWantedError(Exception):
    """Nobody waits for this dump any more, or the relay does not have it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Fetch:
    """One fetching of a dump. One that nobody wants any more may go on beside another of the same."""

    rid: RequestId
    size_bytes: int


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
        self._busy: dict[RequestId, _Fetch] = {}
        self._have = local.finished()
        """Those that are here, or given up."""
        self._stop = threading.Event()
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

    def is_here(self, rid: RequestId) -> bool:
        """Tell whether a dump is here."""
        return rid in self._have

    def add(self, dumps: dict[RequestId, int], released: Container[object] = ()) -> None:
        """Fetch these, by size in bytes; those that are here, or on their way, are left out.

        Parameters
        ----------
        released
            Those that are not to be fetched; who adds one there calls `forget` after that.
        """
        with self._changed:
            for rid, size_bytes in dumps.items():
                if not (rid in self._have or rid in self._busy or rid in released):
                    self._waiting.setdefault(rid, size_bytes)
            self._changed.notify_all()

    def forget(self, rid: RequestId) -> None:
        """Nobody wants this one any more, wherever it is."""
        with self._changed:
            self._waiting.pop(rid, None)
            self._busy.pop(rid, None)
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
            while (fetch := self._take()) is not None:
                try:
                    self._fetch(wire, fetch, buffer)
                except _NotWantedError:
                    pass
                except Exception:  # a bug, or the directory is gone: the others go on
                    log.exception("dump %s could not be fetched", fetch.rid)
                finally:
                    self._done(fetch)

    def _take(self) -> _Fetch | None:
        with self._changed:
            while not self._waiting and not self._stop.is_set():
                self._changed.wait()
            if self._stop.is_set():
                return None
            rid = next(iter(self._waiting))
            fetch = self._busy[rid] = _Fetch(rid, self._waiting.pop(rid))
            return fetch

    def _done(self, fetch: _Fetch) -> None:
        with self._changed:
            if self._busy.get(fetch.rid, fetch) is fetch:  # else its file is another's
                self._busy.pop(fetch.rid, None)
                self._local.directory.part(fetch.rid).unlink(missing_ok=True)

    def _check_wanted(self, fetch: _Fetch) -> None:
        if self._stop.is_set() or self._busy.get(fetch.rid) is not fetch:
            raise _NotWantedError

    def _fetch(self, wire: Wire, fetch: _Fetch, buffer: bytearray) -> None:
        try:
            descriptor = self._reserve(fetch)
        except CaptureError as error:
            self._give_up(fetch, error.reason, f"on the client's machine: {error}")
            return
        try:
            if not self._receive_right(wire, descriptor, fetch, buffer):
                self._give_up(fetch, ErrorReason.ENGINE, "came spoilt from the relay")
                return
            directory = self._local.directory
            with self._changed:
                self._check_wanted(fetch)
                directory.part(fetch.rid).rename(directory.finished(fetch.rid))
                self._have.add(fetch.rid)
        except FileNotFoundError:  # the client has removed it
            raise _NotWantedError from None
        finally:
            os.close(descriptor)

    def _give_up(self, fetch: _Fetch, reason: ErrorReason, detail: str) -> None:
        """Show it as a capture that failed; whoever reads that discards it at the server."""
        log.warning("dump %s stays at the server: %s", fetch.rid, detail)
        with self._changed:
            self._check_wanted(fetch)
            self._local.fail(fetch.rid, json.dumps({"reason": reason, "detail": detail}))
            self._have.add(fetch.rid)  # it is not to be fetched again

    def _reserve(self, fetch: _Fetch) -> int:
        """Make the file as soon as there is room for it.

        Raises
        ------
        CaptureError
            There was none for long: the client has to make some.
        """
        deadline = time.monotonic() + FULL_SECONDS
        directory = self._local.directory
        while True:
            self._check_wanted(fetch)
            try:
                return reserve_file(directory.part(fetch.rid), directory, fetch.size_bytes)
            except CaptureError:
                if time.monotonic() > deadline:
                    raise
            self._stop.wait(ROOM_SECONDS)

    def _receive_right(self, wire: Wire, descriptor: int, fetch: _Fetch, buffer: bytearray) -> bool:
        for _ in range(SPOILT_AGAIN):
            if self._receive(wire, descriptor, fetch, buffer):
                return True
            log.warning("dump %s came with another digest than it has at the server", fetch.rid)
        return False

    def _receive(self, wire: Wire, descriptor: int, fetch: _Fetch, buffer: bytearray) -> bool:
        """Fetch all bytes, however often the line is cut; tell whether they are the right ones."""
        rid, size_bytes = fetch.rid, fetch.size_bytes
        progress = _Progress(descriptor)
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            self._check_wanted(fetch)
            before_bytes = progress.at
            try:
                while progress.at < size_bytes:
                    self._read(wire, fetch, progress, buffer)
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

    def _read(self, wire: Wire, fetch: _Fetch, progress: _Progress, buffer: bytearray) -> None:
        view, size_bytes = memoryview(buffer), fetch.size_bytes
        with wire.dump(fetch.rid, progress.at, size_bytes) as response:
            while progress.at < size_bytes:
                length = response.readinto(view[: min(PIECE_BYTES, size_bytes - progress.at)])
                if not length:
                    raise RelayAwayError("the answer ended early")
                progress.add(view[:length])
                self._on_progress()
                self._check_wanted(fetch)


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

"""The thread that writes what forwards left in the staging buffer into the spool.

Nothing here is ever waited for by the thread that computes, but for a few tens of milliseconds for
room in the buffer. No piece is lost without a trace: each ends in a dump or as its request's `.error` file.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from extraction.spool import ErrorReason
from hsstore_sglang.slices import runs_of
from hsstore_sglang.staging import TooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from extraction.spool import SpoolWriter
    from hsstore_sglang.slices import Piece
    from hsstore_sglang.staging import Staged, Staging

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 0.05
"""How long a forward waits for room in the staging buffer before it gives its captures up. It waits for
the writer below, never for a client."""
_IDLE_SECONDS: Final = 1.0
"""How often an idle writer looks for captures that nobody wants any more."""


@dataclass(frozen=True, slots=True)
class _Rows:
    staged: Staged
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class _GivenUp:
    rid: str
    reason: ErrorReason
    detail: str


class Recorder:
    """Takes pieces from the thread that computes, and writes them in a thread of its own."""

    def __init__(self, spool: SpoolWriter, staging: Staging) -> None:
        self._spool = spool
        self._staging = staging
        # The queue itself is not bounded: rows in it hold staging memory, which is.
        self._jobs: queue.SimpleQueue[_Rows | _GivenUp | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._forwards = 0
        self._taken = 0
        """Pieces queued; only the computing thread counts here."""
        self._written = 0
        """Pieces done with; only the writer counts here."""
        self._beating = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hsstore-writer", daemon=True)
        self._thread.start()

    def record(
        self, pieces: Sequence[Piece], aux: torch.Tensor, final: torch.Tensor, ids: torch.Tensor
    ) -> None:
        """Queue the copy of these rows of a forward. For the thread that computes."""
        try:
            staged = self._staging.stage(
                runs_of(pieces), aux, final, ids, wait_seconds=WAIT_SECONDS
            )
        except TooLargeError as error:
            advice = "raise HSSTORE_STAGING_MB or lower --chunked-prefill-size"
            self.give_up(_rids(pieces), ErrorReason.ENGINE, f"{error}: {advice}")
            return
        if staged is None:
            detail = f"the staging buffer ({self._staging.ring.size_bytes} bytes) is full"
            self.give_up(_rids(pieces), ErrorReason.OVERRUN, detail)
            return
        self._taken += len(pieces)
        self._jobs.put(_Rows(staged, tuple(pieces)))

    def give_up(self, rids: Iterable[str], reason: ErrorReason, detail: str) -> None:
        """End these requests. The writer leaves the reasons: it alone touches files."""
        for rid in rids:
            self._jobs.put(_GivenUp(rid, reason, detail))

    def forward_ended(self) -> None:
        """Count a forward, also one without requests of ours."""
        self._forwards += 1
        self._beat()

    def drain(self) -> None:
        """Wait until all that was queued so far is dealt with. Never for the computing thread."""
        done = threading.Event()
        self._jobs.put(done)
        done.wait()

    def close(self) -> None:
        """Write what is queued and stop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        self._prepare()
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                self._drop_unwanted()
                continue
            if job is None:
                return
            if isinstance(job, threading.Event):
                job.set()
                continue
            if isinstance(job, _Rows):
                self._write(job)
            else:
                self._give_up(job)
            self._beat()

    def _prepare(self) -> None:
        try:
            self._staging.use_in_this_thread()
        except Exception:  # copies will say more; this thread must go on
            logger.exception("hsstore: the writer has no device")

    def _write(self, job: _Rows) -> None:
        try:
            job.staged.wait()
            low = 0
            for piece in job.pieces:
                self._put(piece, job.staged, low)
                low += piece.rows
        except Exception as error:  # the device may fail here; this thread must go on
            logger.exception("hsstore: the copy of %d captures failed", len(job.pieces))
            for piece in job.pieces:
                self._give_up(_GivenUp(piece.rid, ErrorReason.ENGINE, repr(error)))
        finally:
            self._written += len(job.pieces)
            job.staged.release()

    def _put(self, piece: Piece, staged: Staged, low: int) -> None:
        try:
            self._spool.put(piece.rid, piece.start, *staged.rows(low, low + piece.rows))
            if piece.last:
                # Rows that are missing now were never computed: a prefix-cache hit.
                self._spool.seal(piece.rid)
        except Exception as error:  # one request's trouble is not the next one's
            logger.exception("hsstore: writing %s failed", piece.rid)
            self._give_up(_GivenUp(piece.rid, ErrorReason.ENGINE, repr(error)))

    def _give_up(self, job: _GivenUp) -> None:
        try:
            self._spool.fail(job.rid, job.reason, job.detail)
        except Exception:  # nothing is left to say it with
            logger.exception("hsstore: giving %s up failed", job.rid)

    def _drop_unwanted(self) -> None:
        try:
            self._spool.drop_unwanted()
        except Exception:  # this thread must go on
            logger.exception("hsstore: tidying up the spool failed")

    def _beat(self) -> None:
        try:
            with self._beating:  # or an older count could be published after a newer one
                self._spool.beat(forwards=self._forwards, queue_depth=self._taken - self._written)
        except Exception:  # called by the thread that computes, too
            logger.exception("hsstore: no heartbeat")


def _rids(pieces: Sequence[Piece]) -> list[str]:
    return [piece.rid for piece in pieces]

"""Threads between the HTTP server and the spool: some compute, one writes.

Requests are begun in the order of their arrival, and each is a forward of its own, so no number
depends on the load. Pieces go through a bounded queue to the writer; an HTTP response therefore may come before or after its
dump, as with a real server.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from extraction.engines.in_flight import InFlight
from extraction.spool import ErrorReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from extraction.engines.engine import Engine
    from extraction.spool import SpoolServer

logger = logging.getLogger(__name__)

_QUEUED_PIECES: Final = 64
"""Bound of the queue; a full one makes the model wait."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to run."""

    rid: str
    input_ids: npt.NDArray[np.int32]
    """Shape (T,)."""
    predict: bool
    """Whether the next token is wanted."""
    aborted: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended."""

    next_token: int | None = None
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class _Piece:
    rid: str
    start: int
    hidden: npt.NDArray[Any]
    input_ids: npt.NDArray[np.int32]
    last: bool


class Worker:
    """Runs requests through an engine and hands their states to a spool.

    Attributes
    ----------
    in_flight : InFlight
        The ids of its requests, and of whoever serves beside it.
    """

    def __init__(
        self, engine: Engine, spool: SpoolServer, *, piece_tokens: int, threads: int
    ) -> None:
        """Start the threads.

        Parameters
        ----------
        piece_tokens
            Rows a piece, as a server with chunked prefill would hand over.
        threads
            Forwards at once.
        """
        self._engine = engine
        self._spool = spool
        self._piece_tokens = piece_tokens
        self._forwards = 0
        self.in_flight = InFlight()
        self._guard = threading.Lock()
        self._model_threads = ThreadPoolExecutor(threads, thread_name_prefix="model")
        self._pieces: queue.Queue[_Piece | None] = queue.Queue(_QUEUED_PIECES)
        self._writer = threading.Thread(target=self._write_pieces, name="spool-writer")
        self._writer.start()

    def submit(self, requests: Sequence[Request]) -> list[Future[Outcome]]:
        """Queue requests, all or none; a future each.

        Raises
        ------
        DuplicateRequestError
            An id is in flight already, or twice among these.
        """
        self.in_flight.add(requests)
        return [self._start(request) for request in requests]

    def abort(self, rid: str) -> None:
        """Drop a request that has not begun; let go of the dump of one that has. A generation ends.

        When this returns, the spool holds nothing of it but perhaps a finished dump.
        """
        self.in_flight.abort(rid)
        self._spool.abort(rid)

    def close(self) -> None:
        """Drop what has not begun, finish what has, and write it all."""
        self.in_flight.abort_all()
        self._model_threads.shutdown()
        self._pieces.put(None)
        self._writer.join()

    def _start(self, request: Request) -> Future[Outcome]:
        future = self._model_threads.submit(self._run, request)
        # Also when it is cancelled before it began.
        future.add_done_callback(lambda _: self.in_flight.forget(request.rid))
        return future

    def _run(self, request: Request) -> Outcome:
        try:
            if request.aborted.is_set():
                return Outcome(aborted=True)
            states = self._engine.capture(
                request.input_ids, predict=request.predict, progress=self._beat
            )
            with self._guard:
                self._forwards += 1
            self._hand_over(request, states.hidden)
            return Outcome(states.next_token)
        except Exception as error:
            # The boundary to the engine: whatever it raises ends this request, not the server.
            logger.exception("forward of %s failed", request.rid)
            self._spool.fail(request.rid, ErrorReason.ENGINE, repr(error))
            raise

    def _hand_over(self, request: Request, hidden: npt.NDArray[Any]) -> None:
        rows, step = len(request.input_ids), self._piece_tokens
        for start in range(0, rows, step):
            rest = slice(start, start + step)
            piece = _Piece(
                request.rid, start, hidden[rest], request.input_ids[rest], start + step >= rows
            )
            self._pieces.put(piece)

    def _write_pieces(self) -> None:
        while (piece := self._pieces.get()) is not None:
            try:
                self._spool.put(piece.rid, piece.start, piece.hidden, piece.input_ids)
                if piece.last:
                    self._spool.seal(piece.rid)
            except Exception as error:  # without this thread nothing would be written any more
                logger.exception("writing %s failed", piece.rid)
                self._spool.fail(piece.rid, ErrorReason.ENGINE, repr(error))
            self._beat()

    def _beat(self) -> None:
        self._spool.beat(forwards=self._forwards, queue_depth=self._pieces.qsize())

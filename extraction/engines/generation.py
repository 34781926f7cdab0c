"""Answers of a model: sequences that grow side by side, in threads of their own.

Nothing here touches the spool, and captures do not pass here. A sequence joins the others when
there is room, and leaves them when it ends; the last bits of its logits depend on who is beside it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from extraction.engines.in_flight import InFlight
    from extraction.engines.sampling import Sampling

logger = logging.getLogger(__name__)

SEQUENCES: Final = 32
"""That one thread continues at once: so many that a step computes more than it reads weights."""


class Decoder(Protocol):
    """Sequences that grow side by side, in places 0, 1, ...; for one thread."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The model's own ends of an answer."""

    def has_room(self, tokens: int) -> bool:
        """Tell whether a sequence that may grow to so many tokens can join."""

    def add(self, input_ids: npt.NDArray[np.int32], sampling: Sampling) -> int:
        """Take a sequence in, behind the others; return the first token of its answer."""

    def step(self) -> list[int]:
        """Continue all sequences by the token that each got last; return the next of each."""

    def remove(self, place: int) -> None:
        """Drop one sequence; the last one takes its place."""


@runtime_checkable
class Generating(Protocol):
    """An engine that can generate."""

    def decoder(self) -> Decoder:
        """Make an empty decoder. Several work at once, each in its thread.

        Raises
        ------
        InputError
            Not with this model.
        """


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt to be answered."""

    rid: str
    input_ids: npt.NDArray[np.int32]
    """Shape (T,)."""
    sampling: Sampling
    aborted: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request ended."""

    tokens: tuple[int, ...] = ()
    """The token that ended it included."""
    stopped: bool = False
    """By a token, not by the number of tokens."""
    aborted: bool = False


@dataclass(slots=True)
class _Job:
    request: GenerateRequest
    future: Future[Answer]
    stops: frozenset[int] = frozenset()
    tokens: list[int] = field(default_factory=list)

    def take(self, token: int) -> Answer | None:
        """Add a token; return the answer if that was the last one."""
        self.tokens.append(token)
        stopped = token in self.stops
        full = len(self.tokens) == self.request.sampling.max_new_tokens
        aborted = self.request.aborted.is_set()
        return Answer(tuple(self.tokens), stopped, aborted) if stopped or full or aborted else None


class Generator:
    """Answers requests in the order of their arrival, `SEQUENCES` at once in each thread.

    One that is aborted, in `in_flight`, ends at its next token, or when its turn comes.
    """

    def __init__(self, engine: Generating, in_flight: InFlight, *, threads: int) -> None:
        self._engine = engine
        self._in_flight = in_flight
        self._threads = threads
        self._running: list[threading.Thread] = []
        self._waiting: deque[_Job] = deque()
        self._closing = False
        self._change = threading.Condition()

    def submit(self, requests: Sequence[GenerateRequest]) -> list[Future[Answer]]:
        """Queue requests, all or none; a future each.

        Raises
        ------
        DuplicateRequestError
            An id is in flight already, or twice among these.
        """
        self._in_flight.add(requests)
        jobs = [_Job(request, Future()) for request in requests]
        with self._change:
            self._waiting.extend(jobs)
            self._start()
            self._change.notify_all()
        return [job.future for job in jobs]

    def close(self) -> None:
        """Abort everything and end the threads."""
        with self._change:
            self._closing = True
            self._in_flight.abort_all()
            self._change.notify_all()
        for thread in self._running:
            thread.join()

    def _start(self) -> None:
        """Start the threads when they are first needed: most servers only capture."""
        if not self._running:
            self._running = [
                threading.Thread(target=self._run, name=f"generate-{number}")
                for number in range(self._threads)
            ]
            for thread in self._running:
                thread.start()

    def _run(self) -> None:
        decoder, jobs = self._engine.decoder(), list[_Job]()
        while True:
            try:
                if not self._admit(decoder, jobs):
                    return
                self._step(decoder, jobs)
            except Exception as error:
                # The boundary to the engine: whatever it raises ends these requests, not the server.
                logger.exception("generation of %d requests failed", len(jobs))
                for job in jobs:
                    self._end(job, error)
                decoder, jobs = self._engine.decoder(), []

    def _admit(self, decoder: Decoder, jobs: list[_Job]) -> bool:
        """Take in what waits and has room, at least one; return False when it is all over."""
        while job := self._next(decoder, len(jobs)):
            if job.request.aborted.is_set():
                self._end(job, Answer(aborted=True))
                continue
            jobs.append(job)
            job.stops = decoder.stop_token_ids | job.request.sampling.stop_token_ids
            token = decoder.add(job.request.input_ids, job.request.sampling)
            self._take(decoder, jobs, len(jobs) - 1, token)
        return bool(jobs) or not self._closing

    def _next(self, decoder: Decoder, beside: int) -> _Job | None:
        with self._change:
            while not (self._waiting or beside or self._closing):
                self._change.wait()
            if not self._waiting or beside >= SEQUENCES:
                return None
            request = self._waiting[0].request
            room = len(request.input_ids) + request.sampling.max_new_tokens
            return self._waiting.popleft() if not beside or decoder.has_room(room) else None

    def _step(self, decoder: Decoder, jobs: list[_Job]) -> None:
        tokens = decoder.step() if jobs else []
        for place in reversed(range(len(jobs))):  # those behind a place have been dealt with
            self._take(decoder, jobs, place, tokens[place])

    def _take(self, decoder: Decoder, jobs: list[_Job], place: int, token: int) -> None:
        answer = jobs[place].take(token)
        if answer is None:
            return
        decoder.remove(place)
        job, jobs[place] = jobs[place], jobs[-1]
        jobs.pop()
        self._end(job, answer)

    def _end(self, job: _Job, outcome: Answer | Exception) -> None:
        self._in_flight.forget(job.request.rid)
        if not job.future.set_running_or_notify_cancel():  # the client has gone
            return
        if isinstance(outcome, Answer):
            job.future.set_result(outcome)
        else:
            job.future.set_exception(outcome)


def make_generator(engine: object, in_flight: InFlight, *, threads: int) -> Generator | None:
    """Return a generator, or None where this engine or its model cannot generate."""
    if not isinstance(engine, Generating):
        return None
    try:
        engine.decoder()
    except InputError as error:
        logger.info("no text is generated: %s", error)
        return None
    return Generator(engine, in_flight, threads=threads)

"""What a run says about itself, in shared memory: written by the run, read by anyone.

::

    /dev/shm/hsstore-<uid>/
    ├── run-<random>.status   RunStatus, written by the worker; locked while its supervisor lives
    ├── run-<random>.watch    WatchStatus, written by the supervisor: the last stall report
    └── run-<random>.stacks   Python stacks of the worker's threads, written on SIGUSR2

A clean end removes the three. Those of a killed run stay, for the doctor, until a new run on the
same store starts.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from extraction.page import CAPACITY_BYTES, Page, allocate_page, is_locked, read_page
from hsstore.errors import RefusedError
from hsstore.spec import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE_CHARACTERS = 8000
"""Of a longer message only the beginning is kept; even escaped it fits the page."""
DETAIL_CHARACTERS = 500
"""Likewise of a line: a detail of a stage, an error, a piece of evidence."""
SHOWN_CHARACTERS = 300
"""Likewise of why a server is not asked."""
SHOWN_SERVERS = 100
"""Of more servers, where the page has no room for all."""
PREFIX, STATUS_SUFFIX, WATCH_SUFFIX, STACKS_SUFFIX = "run-", ".status", ".watch", ".stacks"
KEPT_DEAD_RUNS = 8
AT_RISK_SAMPLES = 1000

Phase = Literal[
    "starting",
    "reading data",
    "waiting for server",
    "handshake",
    "creating the store",
    "extracting",
    "waiting for other workers",
    "stopping",
    "ended",
]
"""`waiting for server` lasts until it is announced in the spool, and healthy; `waiting for other
workers` while only they have something to do."""


class StageState(Record):
    """One stage of the pipeline at one moment.

    Names, in a sample's order: `admit` (waits until few wait before it), `queue` (for a server with a
    free seat and room in its spool budget), `request`, `answered` (in `request` too: answered over HTTP, and no dump yet), `memory` (waits
    for memory budget), `check`, `write` (handed to the disk thread), `commit` (a block),
    `give-back` (appended, kept in the spool until its block is committed), `retry` (pauses before
    another attempt). What the disk threads are in, each alone: `disk:open`, `disk:read`,
    `disk:write`, `disk:fsync`, `disk:rename`, `disk:unlink`.
    """

    name: str
    items: int
    oldest_since_seconds: float | None = None
    """Unix time since when the oldest item is in this stage; None where there is no item."""
    detail: str = ""
    """The oldest item: a request id, `sample N`, `block N`, or the file of a disk operation."""


ServerPhase = Literal["waiting", "up", "parked", "leaving", "dropped"]
"""What a run does with one of its servers: waits until it is there and has proven itself; asks it;
probes it, as it went away; asks for nothing more, as it was taken out of the file; has refused it."""


class ServerState(Record):
    """One of a run's servers."""

    url: str
    spool: str
    state: ServerPhase = "waiting"
    in_flight: int = 0
    in_flight_cap: int = 0
    tokens: int = 0
    """Asked of it by this run."""
    message: str = ""
    """Why it is not asked, where it is not."""

    @property
    def hoped_for(self) -> bool:
        """Whether the run asks it, or waits for it."""
        return self.state in {"waiting", "up", "parked"}


class RunStatus(Record):
    """One state of a run. Bytes are raw (uncompressed) unless the name says otherwise."""

    run: str
    worker: str = ""
    """Such as 1/4, where several share the store; empty for a run that has it alone."""
    phase: Phase = "starting"
    updated_seconds: float = 0.0
    """Unix time of this state."""
    store: str = ""
    """Absolute path as given; symbolic links are not resolved."""
    store_real: str = ""
    """The same without symbolic links, once the worker has followed them."""
    stage: str = ""
    """The directory that has the stage; empty where the store is on a disk, and needs none."""
    spool: str = ""
    server: str = ""
    """Its URL; of several servers that of the first one that the run asks or waits for."""
    servers: tuple[ServerState, ...] = ()
    """All of them, as the run sees them now."""
    host: str = ""
    boot_id: str = ""
    pid_namespace: str = ""
    """Where the process ids count: those of another container mean nothing elsewhere."""
    worker_pid: int = 0
    supervisor_pid: int = 0
    started_seconds: float = 0.0
    """Unix time of the worker's start."""
    progress_seconds: float = 0.0
    """Unix time when the worker last saw bytes moved or committed, or a heartbeat advance."""
    progress_count: int = 0
    """Changes with every progress: unlike a time, whatever the clock does."""
    oldest_operation: int = 0
    """Number of the oldest file operation that has not returned, fsyncs apart; 0: none."""
    heartbeat_seconds: float = 0.0
    """Unix time when the worker last saw the server's heartbeat advance; 0 before the first."""
    samples: int = 0
    """In the store's plan."""
    complete: int = 0
    """Committed by earlier runs."""
    failed: int = 0
    """Given up by earlier runs."""
    complete_now: int = 0
    """Committed by this run."""
    tokens_now: int = 0
    """Appended by this run, committed or not."""
    bytes_now: int = 0
    bytes_committed_now: int = 0
    bytes_stored_now: int = 0
    """Encoded size of what `bytes_committed_now` counts raw."""
    tokens_pending: int = 0
    """Not yet appended when this run began to extract."""
    in_flight: int = 0
    only_busy: str = ""
    """Why no dump comes although the server answers: it has had no room for many requests in a row."""
    at_risk: tuple[int, ...] = ()
    """Samples that a kill now would have asked for again, the first `AT_RISK_SAMPLES` of them: they
    are under way, or appended and their dumps were given back early."""
    in_flight_cap: int = 0
    open_blocks: int = 0
    failed_now: int = 0
    retries: int = 0
    spool_used_bytes: int = 0
    spool_budget_bytes: int = 0
    tokens_per_second_1min: float = 0.0
    """Over the last minute, or since the extraction began where that is less."""
    tokens_per_second_15min: float = 0.0
    bytes_per_second_1min: float = 0.0
    stages: tuple[StageState, ...] = ()
    last_errors: tuple[str, ...] = ()
    """The last few warnings and errors of the log, newest last."""
    message: str = ""
    """The last thing worth knowing, for people."""
    exit_code: int | None = None
    """Set once, when the run has ended."""


class WatchStatus(Record):
    """The last stall report of a run."""

    verdict: str
    """One of the doctor's list."""
    summary: str = ""
    """The verdict in one sentence."""
    since_seconds: float
    """Unix time since when there was no progress."""
    reported_seconds: float
    """Unix time of the last report of this stall."""
    stalled_seconds: float
    """How long there had been no progress when it was reported, or in all when it has recovered."""
    reports: int = 1
    """How often this stall was reported."""
    evidence: tuple[str, ...] = ()
    advice: str = ""
    kill_cost: str = ""
    recovered_seconds: float | None = None
    """Unix time when progress went on; None while it does not."""
    aborted: bool = False
    """The worker was killed because of this stall."""


def run_directory() -> Path:
    """Return the directory in shared memory for the pages of this user's runs."""
    return Path(f"/dev/shm/hsstore-{os.geteuid()}")  # noqa: S108  # shared memory, mode 0700


def watch_path(status_page: Path) -> Path:
    """Return the page with the last stall report, beside a status page."""
    return status_page.with_suffix(WATCH_SUFFIX)


def stacks_path(status_page: Path) -> Path:
    """Return the file for the worker's stacks, beside a status page."""
    return status_page.with_suffix(STACKS_SUFFIX)


class StatusPage:
    """A mapped page that holds one `RunStatus`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._page = Page(path)
        self._lock: int | None = None

    @classmethod
    def create(cls, directory: Path, store: str = "") -> Self:
        """Create an empty page in a directory in shared memory.

        The page is locked for the life of this process. Pages of dead runs are removed: those of
        `store`, those that say nothing, and the oldest of all others beyond `KEPT_DEAD_RUNS`.

        Raises
        ------
        RefusedError
            The directory is somebody else's.
        OSError
            Shared memory is full.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(directory)
        with _alone_in(directory):
            _sweep(directory, store)
            lock, name = tempfile.mkstemp(STATUS_SUFFIX, PREFIX, directory)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            allocate_page(lock)
            page = cls(Path(name))
        except OSError:
            Path(name).unlink()
            os.close(lock)
            raise
        page._lock = lock
        return page

    def write(self, status: RunStatus) -> None:
        """Publish a state."""
        self._page.write(_body(status))

    def read(self) -> RunStatus | None:
        """Return the last state, or None before the first or when a writer died in a write."""
        return parse_status(self._page.read())

    def remove(self) -> None:
        """Unmap and delete the page."""
        self._page.close()
        self.path.unlink(missing_ok=True)
        self.unlock()

    def unlock(self) -> None:
        """Leave the page to whoever wants to know how the run ended."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def parse_status(body: bytes) -> RunStatus | None:
    """Decode the content of a status page; None where there is none.

    Raises
    ------
    ValueError
        Another version of hsstore wrote it.
    """
    return RunStatus.model_validate_json(body) if body else None


def parse_watch(body: bytes) -> WatchStatus | None:
    """Decode the content of a watch page; None while nothing was ever reported.

    Raises
    ------
    ValueError
    """
    return WatchStatus.model_validate_json(body) if body else None


def _refuse_foreign(directory: Path) -> None:
    owner = directory.lstat().st_uid  # of a link, whoever made it: shared memory is everybody's
    if owner != os.geteuid():
        raise RefusedError(f"{directory} belongs to user {owner}: have it removed")


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Keep others out, who would take a page for dead that is not locked yet."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sweep(directory: Path, store: str) -> None:
    dead = [path for path in directory.glob(f"{PREFIX}*{STATUS_SUFFIX}") if not is_locked(path)]
    dead.sort(key=_modified_ns, reverse=True)
    others = []
    for path in dead:
        if _store_of(path) in {None, store}:
            _remove_run(path)
        else:
            others.append(path)
    for path in others[KEPT_DEAD_RUNS:]:
        _remove_run(path)
    for suffix in (WATCH_SUFFIX, STACKS_SUFFIX):
        for path in directory.glob(f"{PREFIX}*{suffix}"):
            if not path.with_suffix(STATUS_SUFFIX).exists():
                path.unlink(missing_ok=True)


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _store_of(path: Path) -> str | None:
    try:
        status = parse_status(read_page(path))
    except ValueError:  # of another version
        return None
    return None if status is None else status.store


def _remove_run(path: Path) -> None:
    for file in (path, watch_path(path), stacks_path(path)):
        file.unlink(missing_ok=True)


def _body(status: RunStatus) -> bytes:
    """Encode a state so that it fits the page: long texts lose their ends."""
    body = status.model_dump_json().encode()
    if len(body) <= CAPACITY_BYTES:
        return body
    shorter = {
        "message": status.message[:MESSAGE_CHARACTERS],
        "stages": (),
        "last_errors": (),
        "servers": tuple(
            one.model_copy(update={"message": ""}) for one in status.servers[:SHOWN_SERVERS]
        ),
    }
    return status.model_copy(update=shorter).model_dump_json().encode()

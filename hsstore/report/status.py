"""What runs do: the document of `hsstore status`."""

from __future__ import annotations

from typing import Literal

from hsstore.spec import Record


class StageReport(Record):
    """A stage of a run's pipeline, or a file operation that it is in."""

    name: str
    items: int
    oldest_age_seconds: float | None
    detail: str
    """The oldest item."""


class StallReport(Record):
    """The last stall of a run, as its watchdog reported it."""

    verdict: str
    """One of the doctor's list, or of that of another version."""
    summary: str
    """The verdict in one sentence."""
    stalled_seconds: float
    """Without progress, when it was reported; in all where it has recovered."""
    reported_age_seconds: float
    reports: int
    recovered: bool
    aborted: bool
    """The worker was killed because of it."""
    evidence: tuple[str, ...]
    advice: str
    kill_cost: str


class ServerReport(Record):
    """One of the servers of a run."""

    url: str
    spool: str
    state: Literal["waiting", "up", "parked", "leaving", "dropped"]
    """Not there yet; asked; gone away, and probed; taken out; refused."""
    in_flight: int
    in_flight_cap: int
    tokens: int
    """Asked of it by this run."""
    message: str
    """Why it is not asked, where it is not."""


class RunReport(Record):
    """One run on a store. Ages are in seconds before the report was made."""

    run: str
    source: Literal["live", "dead", "copy"]
    """Of a run of this machine that lives, of one that was killed, or from the copy beside the
    store: of another host, or of a run that has ended."""
    age_seconds: float
    """Of all that follows."""
    worker: str = ""
    """Such as 1/4, where several share the store."""
    host: str
    pid: int
    phase: str
    samples: int
    complete: int
    failed: int
    pending: int
    complete_now: int
    """Committed by this run."""
    tokens_now: int
    """Appended by this run."""
    tokens_left: int
    tokens_per_second_1min: float
    tokens_per_second_15min: float
    bytes_per_second_1min: float
    """Raw bytes."""
    ratio: float | None
    """Raw over stored bytes of what this run has committed."""
    eta_seconds: float | None
    """None of a worker: others do a part of what is left."""
    in_flight: int
    in_flight_cap: int
    open_blocks: int
    retries: int
    spool: str
    spool_used_bytes: int
    spool_budget_bytes: int
    server: str
    """Of several the first."""
    servers: tuple[ServerReport, ...] = ()
    """All of them, as the run sees them."""
    heartbeat_age_seconds: float | None
    """Since the run saw the server's heartbeat advance."""
    progress_age_seconds: float
    """Since bytes were moved or committed, or the heartbeat advanced."""
    stages: tuple[StageReport, ...]
    last_errors: tuple[str, ...]
    message: str
    exit_code: int | None
    stall: StallReport | None


class TotalReport(Record):
    """What the runs that live do together."""

    runs: int
    complete_now: int
    """Samples committed by them."""
    tokens_now: int
    in_flight: int
    tokens_per_second_1min: float
    tokens_per_second_15min: float
    bytes_per_second_1min: float
    """Raw bytes."""
    eta_seconds: float | None
    """By the samples of the store that are pending, and their mean length."""


class StatusReport(Record):
    """How the runs on a store are doing: `hsstore status`."""

    store: str
    samples: int | None
    """Of the plan, by the store's own files; None where they were not read."""
    complete: int | None
    failed: int | None
    unread: str
    """Why the store's own files were not read; empty where they were."""
    total: TotalReport | None = None
    """None where no run is alive."""
    runs: tuple[RunReport, ...]
    """Live ones first, then the newest."""

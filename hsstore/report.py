"""What the commands report: the documents that `--json` prints, described in schemas/."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from hsstore.dtype import DTypeName
from hsstore.spec import FinalState, Record, RunRecord, StoreSpec
from hsstore.verdict import Verdict

if TYPE_CHECKING:
    from pydantic import BaseModel


class Info(Record):
    """What a store holds: `hsstore info`."""

    path: str
    samples: int
    """Of the plan."""
    complete: int
    failed: int
    failed_by_reason: dict[str, int]
    pending: int
    tokens: int
    """Of the plan."""
    tokens_complete: int
    bytes_raw: int
    """States of the complete samples, uncompressed and without padding."""
    bytes_stored: int
    """Of all files below the store, the plan and the metadata included."""
    files: int
    ratio: float | None
    """`bytes_raw / bytes_stored`; None before the first complete sample."""
    slots: int
    hidden: int
    dtype: DTypeName
    layers: tuple[int, ...]
    """Captured layers; one slot each, before the final state."""
    final: FinalState
    model: str
    codec: dict[str, Any]
    blocks: int
    shards: int
    spans: int
    splits: tuple[str, ...]
    created: str
    created_by: str
    runs: tuple[RunRecord, ...]


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


class RunReport(Record):
    """One run on a store. Ages are in seconds before the report was made."""

    run: str
    source: Literal["live", "dead", "copy"]
    """Of a run of this machine that lives, of one that was killed, or from the copy beside the
    store: of another host, or of a run that has ended."""
    age_seconds: float
    """Of all that follows."""
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
    in_flight: int
    in_flight_cap: int
    open_blocks: int
    retries: int
    spool: str
    spool_used_bytes: int
    spool_budget_bytes: int
    server: str
    heartbeat_age_seconds: float | None
    """Since the run saw the server's heartbeat advance."""
    progress_age_seconds: float
    """Since bytes were moved or committed, or the heartbeat advanced."""
    stages: tuple[StageReport, ...]
    last_errors: tuple[str, ...]
    message: str
    exit_code: int | None
    stall: StallReport | None


class StatusReport(Record):
    """How the runs on a store are doing: `hsstore status`."""

    store: str
    samples: int | None
    """Of the plan, by the store's own files; None where they were not read."""
    complete: int | None
    failed: int | None
    unread: str
    """Why the store's own files were not read; empty where they were."""
    runs: tuple[RunReport, ...]
    """Live ones first, then the newest."""


class BadKind(StrEnum):
    """What is wrong, as `verify` says it. A closed list; append only."""

    METADATA = "metadata"
    """A zarr.json has changed, or cannot be read."""
    PLAN = "plan"
    """What the plan fixed has changed, or cannot be read."""
    COMPLETION = "completion"
    """A chunk of `complete`, `failed` or `digest` does not pass its crc32c."""
    MISSING_SHARD = "missing-shard"
    """The sample is complete, and its shard is not there."""
    SHARD_INDEX = "shard-index"
    """The index of the sample's shard is damaged, or the file was cut."""
    MISSING_CHUNK = "missing-chunk"
    """The sample is complete, and a chunk of it is not in the shard."""
    CHUNK = "chunk"
    """A chunk does not pass its crc32c, or does not decode."""
    UNREADABLE = "unreadable"
    """The file system refused to read the shard."""
    DIGEST = "digest"
    """The states are not those whose digest was recorded."""
    NOT_FINITE = "not-finite"
    """The states hold infinities or NaNs."""
    ZERO_ROW = "zero-row"
    """A row of a slot is all zero: it was never captured."""
    PADDING = "padding"
    """The padding behind the sample's last row is not NaN."""
    PAYLOAD_WITHOUT_BIT = "payload-without-bit"
    """States and digest are there and agree, and the completion bit is not set."""
    COMPLETE_AND_FAILED = "complete-and-failed"
    """The sample is marked both ways."""
    RUN = "run"
    """The record of a run cannot be read."""


class Bad(Record):
    """One finding."""

    sample: int | None
    """None where no single sample can be named."""
    sample_id: str | None
    kind: BadKind
    detail: str


class Verification(Record):
    """What verify found: `hsstore verify`."""

    path: str
    ok: bool
    """Nothing bad. Pending and failed samples are not bad."""
    samples: int
    """Of the plan."""
    checked: int
    """Samples whose states were read and checked: all that are complete."""
    pending: int
    failed: int
    bytes_checked: int
    """Raw bytes of the states that were checked."""
    bad: tuple[Bad, ...]


class KillCost(Record):
    """What killing the run now would cost. Committed samples are never lost."""

    text: str
    asked_again: tuple[int, ...] = ()
    """Samples known to be asked for again, by number."""
    in_flight: int = 0
    """Requests under way, whether their numbers are known or not."""
    kept_in_spool: tuple[int, ...] = ()
    """Samples whose finished dumps lie in the spool: the next run takes them from there."""


class Diagnosis(Record):
    """One verdict and why: `hsstore doctor`, and the watchdog's stall reports."""

    verdict: Verdict
    summary: str
    """The verdict in one sentence."""
    evidence: tuple[str, ...]
    """What was seen, line by line; also what could not be seen."""
    advice: str
    kill_cost: KillCost
    run: str | None = None
    """The run that was looked at."""
    store: str = ""


DOCUMENTS: dict[str, type[BaseModel]] = {
    "store": StoreSpec,
    "run": RunRecord,
    "info": Info,
    "verify": Verification,
    "doctor": Diagnosis,
    "status": StatusReport,
}
"""Every document that has a schema: `schemas/<name>.schema.json`."""

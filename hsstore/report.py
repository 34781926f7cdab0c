"""What the commands report: the documents that `--json` prints, described in schemas/."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hsstore.against_report import AgainstReport
from hsstore.dtype import DTypeName
from hsstore.semantic_report import SemanticReport
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
    CONSTANT_ROW = "constant-row"
    """A row of a slot is one and the same number throughout."""
    EQUAL_SLOTS = "equal-slots"
    """Two slots of the sample are equal in every row."""
    PADDING = "padding"
    """The padding behind the sample's last row is not NaN, or a chunk is there that is no sample's."""
    PAYLOAD_WITHOUT_BIT = "payload-without-bit"
    """States and digest are there and agree, and the completion bit is not set."""
    COMPLETE_AND_FAILED = "complete-and-failed"
    """The sample is marked both ways."""
    RUN = "run"
    """The record of a run cannot be read."""
    UNEXPECTED_FILE = "unexpected-file"
    """Something lies in the store that is no part of one."""


class Bad(Record):
    """One finding."""

    sample: int | None
    """None where no single sample can be named."""
    sample_id: str | None
    kind: BadKind
    detail: str


class BadCount(Record):
    """The findings of one kind: a line of verify's table."""

    kind: BadKind
    findings: int
    first_samples: tuple[int, ...]
    """The lowest numbers, a few."""
    example: str
    """Detail of one finding."""
    repairable: int
    """Findings that `--repair` mends: it clears the sample's bit, and `extract` asks again."""
    advice: str
    """What to do about the others, or about all."""


class NoteKind(StrEnum):
    """What verify remarks though nothing is wrong with the store. A closed list; append only."""

    LEFTOVER = "leftover"
    """Files that a dead run began and never published; the next `extract` removes them."""
    CLAIM = "claim"
    """Spans that a dead run has not given back; the next `extract` takes them over."""
    WRITER = "writer"
    """A run is writing this store now, or may be."""


class Note(Record):
    """A remark that is not about anything bad."""

    kind: NoteKind
    detail: str


class Sampling(Record):
    """Which part of the samples a quick look has taken."""

    asked: str
    """As it was asked for: `5%`, or a number of samples."""
    seed: int
    chosen: int
    """Samples of those that have states."""


class SlotNorms(Record):
    """How large the rows of a slot are: root mean squares, of one row in 64 of every sample read."""

    slot: int
    layer: int | None
    """None: the final state."""
    rows: int
    p01: float
    median: float
    p99: float
    largest: float
    histogram: tuple[int, ...]
    """Rows by powers of two, the first bin being 2**-24 to 2**-23."""


class Coverage(Record):
    """The completion arrays along the samples, in at most 1,200 equal pieces."""

    samples_a_piece: int
    complete: tuple[int, ...]
    failed: tuple[int, ...]
    bad: tuple[int, ...]
    """Samples with a finding, whatever their bit says."""


class Lengths(Record):
    """How many samples have how many tokens."""

    edges: tuple[int, ...]
    """Of the bins, in tokens: the first is from `edges[0]` to less than `edges[1]`."""
    samples: tuple[int, ...]
    complete: tuple[int, ...]


class Repair(Record):
    """What `--repair` has done."""

    cleared: int
    """Samples that are pending now, which is all that was changed: `hsstore extract` redoes them."""
    files: int
    """Completion files that were written anew."""
    left: int
    """Findings that clearing a bit does not mend; `kinds` says what does."""
    refused: str = ""
    """Why nothing was done; empty where it was."""


class Section(Protocol):
    """What a further check reports; an optional field of the verification."""

    @property
    def ok(self) -> bool:
        """Nothing bad."""


class Verification(Record):
    """What verify found: `hsstore verify`."""

    path: str
    ok: bool
    """Nothing bad. Pending and failed samples are not bad, and notes are not."""
    samples: int
    """Of the plan."""
    checked: int
    """Samples whose states were read and checked: all that are complete, or those of `sampling`."""
    pending: int
    failed: int
    bytes_checked: int
    """Raw bytes of the states that were checked."""
    kinds: tuple[BadCount, ...]
    """Everything bad, by kind."""
    bad: tuple[Bad, ...]
    """Everything bad, one by one; a million at most."""
    notes: tuple[Note, ...]
    sampling: Sampling | None = None
    """None where all samples were checked."""
    repair: Repair | None = None
    """None without `--repair`."""
    norms: tuple[SlotNorms, ...] = ()
    coverage: Coverage | None = None
    """None where the plan cannot be read; before a repair."""
    lengths: Lengths | None = None
    semantic: SemanticReport | None = None
    """None without `--semantic`."""
    against: AgainstReport | None = None
    """None without `--against`."""

    def with_section(self, name: str, section: Section) -> Verification:
        """Return the report with what another check has found, in the field of this name."""
        return self.model_copy(update={name: section, "ok": self.ok and section.ok})


class ConsolidationSource(Record):
    """One of the stores that were merged."""

    path: str
    store: str
    """Its UUID."""
    samples: int
    """Of its plan."""
    complete: int
    """When this run began; what has been completed since an earlier run began is not taken."""
    taken: int
    """Samples of the destination that come from it."""
    files: int
    bytes_stored: int


class UnusableSample(Record):
    """A sample that was chosen, and whose states could not be taken over. It is pending."""

    sample: int
    """In the destination."""
    sample_id: str
    source: str
    detail: str


class Consolidation(Record):
    """What became of stores that were merged: `hsstore consolidate`."""

    path: str
    """Of the destination."""
    ok: bool
    """All its samples are complete, and verify found nothing; of a dry run: it can be done."""
    dry_run: bool
    """Nothing was written."""
    resumed: bool
    """An earlier run of the same command had begun."""
    samples: int
    """Of the destination's plan: the complete samples of the sources that were wanted, each id once."""
    complete: int
    pending: int
    duplicates: int
    """Samples left out because another source has them too; 0 when it was resumed."""
    conflicts: int
    """Of these, the ones that differ from what was taken."""
    sources: tuple[ConsolidationSource, ...]
    samples_linked: int
    """By this run, like the next two: taken over with their shard."""
    samples_copied: int
    """As they were encoded."""
    samples_encoded: int
    """Decoded, and encoded anew."""
    shards: int
    """Of the destination."""
    shards_linked: int
    """By this run."""
    shards_unchanged: int
    """Foreseen to be linked."""
    unusable: tuple[UnusableSample, ...]
    bytes_raw: int
    """States of all its samples, uncompressed and without padding."""
    bytes_stored: int
    """Of all files of the destination."""
    files: int
    ratio: float | None
    """`bytes_raw / bytes_stored`; None while samples are pending."""
    bytes_needed: int
    """Foreseen before this run wrote anything, as an estimate."""
    bytes_free: int
    notes: tuple[str, ...]
    verification: Verification | None
    """None where it was not wanted."""


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
    "consolidate": Consolidation,
    "doctor": Diagnosis,
    "status": StatusReport,
}
"""Every document that has a schema: `schemas/<name>.schema.json`."""

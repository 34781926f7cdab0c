"""What is wrong with a store: the document of `hsstore verify`."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from hsstore.report.against import AgainstReport
from hsstore.report.semantic import SemanticReport
from hsstore.spec import Record


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
    """How large the rows of a slot are: root mean squares, of one row in 128 of every sample read."""

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

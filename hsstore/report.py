"""What the commands report: the documents that `--json` prints, described in schemas/."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hsstore.dtype import DTypeName
from hsstore.spec import FinalState, Record, RunRecord, StoreSpec

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


DOCUMENTS: dict[str, type[BaseModel]] = {
    "store": StoreSpec,
    "run": RunRecord,
    "info": Info,
    "verify": Verification,
}
"""Every document that has a schema: `schemas/<name>.schema.json`."""

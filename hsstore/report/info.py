"""What a store holds: the document of `hsstore info`."""

from __future__ import annotations

from typing import Any

from hsstore.dtype import DTypeName
from hsstore.spec import FinalState, Record, RunRecord


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

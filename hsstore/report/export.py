"""What became of an export, and what an exported directory says of itself."""

from __future__ import annotations

from typing import Literal

from hsstore.spec import FinalState, Model, Record


class ExportRequest(Record):
    """A command, as the directory records it: it can only be continued by the same one."""

    trainer: str
    """The format, by its name."""
    store: str
    """UUID of the store."""
    plan_hash: str
    split: str | None = None
    ids: str | None = None
    """XXH3-128 over the wanted ids, sorted."""
    draft_vocabulary: int | None = None
    target_vocabulary: int | None = None


class ExportRecord(Record):
    """`hsstore-export.json` in an exported directory: what no file of these formats says."""

    format: Literal["hsstore-export/1"] = "hsstore-export/1"
    created: str
    """ISO 8601, UTC."""
    created_by: str
    request: ExportRequest
    model: Model
    """As the store has it; `layers` are outputs of 0-based decoder layers."""
    norm_hash: str
    """XXH3-128 over the weight of the model's final norm, in the dtype of the states."""
    layer_inputs: tuple[int, ...]
    """The same layers as speculators, vLLM and EAGLE count them: what goes into decoder layer k."""
    final: FinalState
    """The final state in the files."""
    norm_error: float | None = None
    """Where the store has the state after the norm and the files one before it, which was made up: the
    largest relative difference, in the 2-norm of a row, between these normalised again and the stored
    ones. Until it is finished, of a part of them."""
    samples: tuple[tuple[int, int], ...]
    """Samples of the store, in its order, as ranges (first, end): row r is the r-th of them."""
    states_hash: str
    """XXH3-128 over the digests of these samples."""
    finished: bool = False
    """All files are there, those beside the samples too."""


class Export(Record):
    """What became of samples that were written for another trainer: `hsstore export`."""

    path: str
    store: str
    trainer: str
    resumed: bool
    """An earlier run of the same command had begun."""
    samples: int
    """Of the directory."""
    written: int
    """Files of samples, by this run."""
    kept: int
    """Files of samples that were there, whole."""
    left_out_pending: int
    """Samples that were wanted and are not in the store yet; run it again into another directory for them."""
    left_out_failed: int
    bytes_written: int
    bytes_needed: int
    """Foreseen before this run wrote anything, as an estimate."""
    bytes_free: int | None
    """None in an object store, which has no end."""
    final: FinalState
    norm_error: float | None
    """As in hsstore-export.json."""
    notes: tuple[str, ...]
    settings: tuple[str, ...]
    """What the trainer has to be told, as it wants to be told it."""

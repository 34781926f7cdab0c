"""What a store says about itself: the attributes of `hsstore/1`, and the failure reasons.

These types are the source of `schemas/store.schema.json`. docs/format.md explains every field.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hsstore.dtype import DTypeName, native_dtype
from hsstore.errors import RefusedError
from hsstore.layout import Geometry

FORMAT: Literal["hsstore/1"] = "hsstore/1"

COMPLETION = ("complete", "failed", "digest")
"""The completion arrays: one chunk a span."""

FinalState = Literal["post-norm", "pre-norm", "none"]
"""Whether the last slot is the state after the final norm, before it, or not stored at all."""


class FailureReason(IntEnum):
    """Why a sample has no payload: the values of the array `failed`. Append only."""

    NONE = 0
    """Not failed: complete or pending."""
    REFUSED = 1
    """The server refused this very request."""
    BAD_DATA = 2
    """What the server handed over did not match the request, several times."""
    NOT_FINITE = 3
    """The states held infinities or NaNs."""
    TOO_LARGE = 4
    """The sample fits neither the spool nor the memory budget."""

    @property
    def label(self) -> str:
        """The name used in attributes and reports, such as `bad-data`."""
        return self.name.lower().replace("_", "-")


class Record(BaseModel):
    """Base of everything that is written as JSON: immutable, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Norm(Record):
    """The model's final norm; its weight is the array `norm_weight`."""

    kind: str = "rmsnorm"
    """`rmsnorm`: x / rms(x) * weight."""
    epsilon: float


class Model(Record):
    """The model whose states are stored, as its server resolved it."""

    id: str
    """Name or path, for people; identity is the capture hash."""
    capture_hash: str
    """Over all that decides the numbers: weights, layers, norm, dtype, quantisation."""
    num_layers: Annotated[int, Field(ge=1)]
    hidden: Annotated[int, Field(ge=1)]
    layers: tuple[int, ...]
    """Captured layers, ascending: the residual stream after 0-based decoder layer k, before any
    later norm. One slot each, in this order."""
    final: FinalState
    """The last slot."""
    norm: Norm
    dtype: DTypeName
    """Element type of `hidden_states`."""

    @property
    def slots(self) -> int:
        """Length of the slot axis."""
        return len(self.layers) + (self.final != "none")

    @model_validator(mode="after")
    def _check_layers(self) -> Model:
        if list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"layers {list(self.layers)} are not ascending and distinct")
        if self.layers and not 0 <= self.layers[0] <= self.layers[-1] < self.num_layers:
            raise ValueError(f"layers {list(self.layers)} are outside 0..{self.num_layers - 1}")
        if not self.slots:
            raise ValueError("neither a layer nor the final state is captured")
        return self


class Dataset(Record):
    """The dataset that the plan came from."""

    fingerprint: str
    samples: int
    tokens: int
    split_names: tuple[str, ...]
    tokenizer_hash: str | None
    """None where the data came tokenised."""


class LayoutSizes(Record):
    """The sizes from which, with the lengths, the layout follows."""

    chunk_rows: Annotated[int, Field(ge=1)]
    chunk_slots: Annotated[int, Field(ge=1)]
    shard_rows: Annotated[int, Field(ge=1)]
    span_samples: Annotated[int, Field(ge=1)]


class Seal(Record):
    """XXH3-128, in hex, over the JSON that no crc32c of Zarr protects."""

    arrays: dict[str, str] = {}
    """Of each array's `zarr.json`, byte by byte."""
    attributes: str = ""
    """Of all the other attributes: JSON with sorted keys, no spaces, non-ASCII escaped."""


class StoreSpec(Record):
    """`attributes["hsstore"]` of a store's root group: written once, never changed."""

    format: Literal["hsstore/1"] = FORMAT
    store: str
    """UUID of this store; dumps name the store that they were made for."""
    created: str
    """ISO 8601, UTC."""
    created_by: str
    model: Model
    dataset: Dataset
    layout: LayoutSizes
    codec: dict[str, Any]
    """The compressor of `hidden_states`, as in its zarr.json."""
    plan_hash: str
    """Over row_start, length, input_ids, loss_mask, sample_id and split."""
    failure_reasons: dict[int, str] = {reason.value: reason.label for reason in FailureReason}
    golden_input_ids: tuple[int, ...] = ()
    """The short prefix whose states are in `golden`; empty where no server was asked."""
    seal: Seal = Seal()

    @property
    def geometry(self) -> Geometry:
        """The sizes in the form that planning uses."""
        return Geometry(
            slots=self.model.slots,
            hidden=self.model.hidden,
            itemsize=native_dtype(self.model.dtype).itemsize,
            **self.layout.model_dump(),
        )

    def failure_label(self, code: int) -> str:
        """Name a value of `failed`; a later version may have added reasons to this store."""
        return self.failure_reasons.get(code, f"reason-{code}")

    def refuse_other_model(self, model: Model) -> None:
        """Refuse a model that would give other numbers, naming the field that differs.

        Raises
        ------
        RefusedError
        """
        mine, theirs = self.model.model_dump(), model.model_dump()
        # The capture hash covers the rest: the plainer field is the better message.
        for name in [*(key for key in mine if key not in {"id", "capture_hash"}), "capture_hash"]:
            if mine[name] != theirs[name]:
                raise RefusedError(
                    f"this store was made for another model: {name} is {mine[name]!r} in the "
                    f"store and {theirs[name]!r} on the server; use another store"
                )

    def refuse_other_dataset(self, fingerprint: str) -> None:
        """Refuse data that would give another plan.

        Raises
        ------
        RefusedError
        """
        if fingerprint != self.dataset.fingerprint:
            raise RefusedError(
                f"this store was made from other data: dataset fingerprint is "
                f"{self.dataset.fingerprint} in the store and {fingerprint} for the files given; "
                "leave --data away to resume, or use another store"
            )


FINISHED = "finished"
INTERRUPTED = "interrupted"
BROKEN = "broken by a bug"
CLEAN_ENDS = frozenset({FINISHED, INTERRUPTED})
"""Results of runs that left no block half committed."""


CanaryVerdict = Literal["same", "rows", "one-sample", "wrong", "not-compared", "isolated", "off"]
"""What came of asking again for the same states under load.

`same`: nothing beyond the threshold; `rows`: single rows were; `one-sample`: the median row of one
sample was; `wrong`: those of several, which ends the run; `not-compared`: the run ended, or had no
room, before anything was; `isolated`: the server computes each request alone; `off`: the user said
so.
"""


class CanarySlot(Record):
    """How far the states of one slot moved; differences are relative, in the 2-norm of a row."""

    slot: int
    floor: float
    """Median row of two identical requests asked for alone; the largest of any sample."""
    threshold: float
    """What rounding, or the floor, may explain."""
    median: float
    """Median row of alone against within a batch; the largest of any sample and check."""
    worst: float
    """The row that moved most."""
    samples: int
    """Samples compared."""
    verdict: CanaryVerdict


class CanaryRecord(Record):
    """What a run's canary found: prefixes asked for alone, and again within full batches."""

    verdict: CanaryVerdict
    """The worst of all slots."""
    samples: tuple[int, ...] = ()
    """Whose prefixes were asked for."""
    rows: int = 0
    """Tokens of a prefix, at most."""
    checks: int = 0
    """Times that the prefixes were asked for within a batch, and came."""
    slots: tuple[CanarySlot, ...] = ()


class ServerRecord(Record):
    """One of the servers of a run."""

    url: str
    spool: str
    instance: str | None
    """UUID of its start, the last one of several; None where it never came, or was refused."""
    engine_version: str | None
    flags: dict[str, Any]
    tokens: int
    """Asked of it."""
    canary: CanaryRecord | None
    message: str
    """Why it was not asked any more, if it was not."""


class RunRecord(Record):
    """`attributes["hsstore_run"]` of a group in `runs/`: one extraction run."""

    run: str
    started: str
    ended: str | None = None
    result: str | None = None
    """How the run ended; None while it runs, or when it was killed."""
    host: str
    pid: int
    hsstore_version: str
    capture_hash: str
    engine: str
    engine_version: str
    server_instance: str
    server_flags: dict[str, Any]
    """Of the server that was there first, as the four above."""
    options: dict[str, Any]
    servers: tuple[ServerRecord, ...] = ()
    """All of an extraction; empty where an earlier version made the record."""
    canary: CanaryRecord | None = None
    """Of all servers the worst; None until the run has ended, and where an earlier version made the
    record."""
    output_warnings: tuple[str, ...] = ()
    """What the output file system cannot do, as far as the run has met it: an fsync of a directory,
    for one. Where that is so, a power cut may cost more than what was not committed."""

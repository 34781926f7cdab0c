"""What is asked: model, data, servers, workers and output of a run, as a TOML file says them.

Units are in the names; a GB is 10^9 bytes. What is left out has the default given here, and what
has none is measured: see `calibration.py`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from hsstore.errors import InputError
from hsstore.spec import Record

if TYPE_CHECKING:
    from typing import Self

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class ModelShape(Record):
    """States of one token."""

    hidden: Count = 7168
    slots: Count = 4
    """Layers that are kept, the final state included."""
    dtype_bytes: Literal[2, 4] = 2


class Data(Record):
    """The samples: log-normal lengths, or those of a file."""

    samples: Count = 37_312
    tokens_mean: Positive = 87_800_000 / 37_312
    tokens_median: Positive | None = None
    """None: two thirds of the mean, as of chats."""
    tokens_longest: Count = 32_768
    lengths_file: Path | None = None
    """Tokens of each sample, one a line, or as .npy; takes the place of all above."""

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if self.tokens_median is not None and self.tokens_median > self.tokens_mean:
            raise ValueError("tokens_median is above tokens_mean: lengths have a long tail upwards")
        if self.tokens_mean > self.tokens_longest:
            raise ValueError("tokens_mean is above tokens_longest")
        return self


class Servers(Record):
    """The inference servers of one worker."""

    per_worker: Count = 1
    prefill_tokens_per_second: Positive = 10_000
    """Of each server, states included."""
    request_seconds: NotNegative = 0
    """What a request takes beside its tokens."""
    hand_over_gb_per_second: Positive | None = None
    """From the server's memory into the spool."""


class Workers(Record):
    """The processes of `hsstore extract`, each with servers and spools of its own."""

    count: Count = 1
    cores: Count = 16
    """Of each, for checks and encoding."""
    spool_gb: Positive = 64
    """`--spool-budget-gb`, for each server."""
    memory_gb: Positive = 2
    """`--memory-gb`."""
    max_in_flight: Count = 32
    """`--max-in-flight`, for each server."""
    start_seconds: NotNegative | None = None
    """Until the first request."""
    request_seconds: NotNegative | None = None
    """What one sample takes of the event loop."""
    chunk_rows: Count | None = None
    shard_rows: Count | None = None
    span_samples: Count | None = None
    """The layout; None: as the store chooses."""


class Codec(Record):
    """What encoding and checks give."""

    ratio: Positive | None = None
    """Raw over stored bytes."""
    encode_gb_per_second_per_core: Positive | None = None
    check_gb_per_second_per_core: Positive | None = None


class Output(Record):
    """Where the store is."""

    kind: Literal["disk", "object"] = "disk"
    """`disk`: written as it comes, fsync at the commit. `object`: staged, and put whole at the commit."""
    gb_per_second: Positive = 0.5
    """Of all workers together, stored bytes."""
    gb_per_second_per_worker: Positive | None = None
    """What the network of one worker gives; None: as much as there is."""
    commit_seconds: NotNegative | None = None
    """`disk`: the fsyncs and small files of a commit, the bytes of its shard aside."""
    put_seconds: NotNegative = 0.15
    """`object`: until a PUT begins to move bytes, or a small one is done."""
    uploads_at_once: Count = 1
    """`object`: commits under way at once, for each worker."""
    staging_gb: Positive = 16
    """`object`: encoded bytes, not yet put, of each worker."""


class Stall(Record):
    """A while during which the output takes nothing."""

    at_seconds: NotNegative
    seconds: Positive


class Scenario(Record):
    """One run to be simulated."""

    name: str = "run"
    model: ModelShape = ModelShape()
    data: Data = Data()
    servers: Servers = Servers()
    workers: Workers = Workers()
    codec: Codec = Codec()
    output: Output = Output()
    stalls: tuple[Stall, ...] = ()
    simulated_workers: Count | None = None
    """So many of the workers, with their share of data and output; None: at most 8."""
    seed: int = 0

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if (self.simulated_workers or 1) > self.workers.count:
            raise ValueError("simulated_workers is above workers.count")
        ends = [0.0, *(stall.at_seconds + stall.seconds for stall in self.stalls)]
        if any(stall.at_seconds < end for stall, end in zip(self.stalls, ends, strict=False)):
            raise ValueError("stalls must follow one another")
        return self

    @property
    def row_bytes(self) -> int:
        """Raw bytes of one token's states."""
        return self.model.hidden * self.model.slots * self.model.dtype_bytes


def load_scenario(path: Path | None, settings: list[str]) -> Scenario:
    """Read a scenario, and change single values of it.

    Parameters
    ----------
    settings : list of str
        Such as `servers.per_worker=2`; the values are TOML.

    Raises
    ------
    InputError
        What is wrong, and where.
    """
    where = path or "the options"
    try:
        document = tomllib.loads(path.read_text()) if path else {}
        for setting in settings:
            _set(document, setting)
        return Scenario.model_validate(document)
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not TOML: {error}") from error
    except ValidationError as error:
        raise InputError(f"{where}: {_explain(error)}") from error


def _set(document: dict[str, Any], setting: str) -> None:
    name, equals, value = setting.partition("=")
    if not equals:
        raise InputError(f"--set takes NAME=VALUE, such as servers.per_worker=2, not {setting!r}")
    *tables, key = name.strip().split(".")
    for table in tables:
        document = document.setdefault(table, {})
        if not isinstance(document, dict):
            raise InputError(f"--set {setting}: {table} is no table")
    try:
        document[key] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        document[key] = value.strip()  # a bare word


def _explain(error: ValidationError) -> str:
    faults = []
    for fault in error.errors():
        name = ".".join(map(str, fault["loc"])) or "scenario"
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = "is no setting of a scenario"
        faults.append(f"{name}: {message}")
    return "; ".join(faults)

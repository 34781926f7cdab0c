"""Read the completion arrays of a span even where a chunk of them is damaged.

They are stored uncompressed: after a flipped byte all the other values are still right. So the
values are taken as they are, and the payload then tells which of them is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.location import RemotePath
from hsstore.report import BadKind
from hsstore.spans import DTYPES, read_span, read_span_objects
from hsstore.store import Completion
from hsstore.verify.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from hsstore.location import Location
    from hsstore.store import Store

    SpanFile = tuple[npt.NDArray[Any], str, str]
    """Values, what is wrong with the file, and its version."""

# `complete` is 0 or 1; read as a number, to see values that are neither.
ARRAYS = DTYPES | {"complete": np.dtype(np.uint8)}


@dataclass(frozen=True, slots=True)
class SpanState:
    """The completion arrays of one span, as the files hold them."""

    span: int
    samples: range
    completion: Completion
    damaged: dict[str, str]
    """What is wrong with the chunk of each array that is not as it was written."""
    findings: tuple[Finding, ...]
    """Samples whose values alone show that they are wrong."""
    versions: dict[str, str]
    """Of the objects that were read; files have none."""


def read_span_states(store: Store) -> list[SpanState]:
    """Read the chunks of all spans; those of `complete` first, as every reader does."""
    files = {name: _read_all(store, name, dtype) for name, dtype in ARRAYS.items()}
    return [
        _span_state(store, span, {name: files[name][span] for name in ARRAYS})
        for span in range(store.layout.spans)
    ]


def _read_all(store: Store, name: str, dtype: np.dtype[Any]) -> list[SpanFile]:
    count = store.spec.layout.span_samples
    paths: list[Location] = [
        store.location / name / f"c.{span}" for span in range(store.layout.spans)
    ]
    if isinstance(store.location, RemotePath):
        return read_span_objects(paths, dtype, count)
    return [_read(path, dtype, count) for path in paths]


def _read(path: Location, dtype: np.dtype[Any], count: int) -> SpanFile:
    try:
        return (*read_span(path, dtype, count), "")
    except OSError as error:
        return np.zeros(count, dtype), f"cannot be read: {error.strerror}", ""


def _span_state(store: Store, span: int, files: dict[str, SpanFile]) -> SpanState:
    where = store.layout.span_slice(span)
    damaged = {
        name: f"{name}/c.{span}: {problem}" for name, (_, problem, _) in files.items() if problem
    }
    count = where.stop - where.start
    complete, failed, digest = (files[name][0][:count] for name in ARRAYS)
    known = list(store.spec.failure_reasons)
    impossible = {
        "complete": complete > 1,
        "failed": ~np.isin(failed, known) & ("failed" in damaged),
    }
    findings = _name_impossible(where.start, impossible, {"complete": complete, "failed": failed})
    return SpanState(
        span,
        range(where.start, where.stop),
        Completion(complete != 0, failed, digest),
        damaged,
        tuple(findings),
        {name: version for name, (_, _, version) in files.items()},
    )


def _name_impossible(
    first: int, impossible: dict[str, npt.NDArray[np.bool_]], values: dict[str, npt.NDArray[Any]]
) -> Iterator[Finding]:
    for name, wrong in impossible.items():
        for index in np.flatnonzero(wrong).tolist():
            detail = f"{name} is {int(values[name][index])}, which was never written"
            yield Finding(first + index, BadKind.COMPLETION, detail)

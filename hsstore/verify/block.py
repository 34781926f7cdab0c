"""Check the samples of one block: the unit of work that Dask distributes.

A task can be pickled, and its worker needs only the files of the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.location import RemotePath
from hsstore.report import BadKind
from hsstore.shard import shard_path
from hsstore.shard.index import MISSING
from hsstore.verify.finding import Finding
from hsstore.verify.states import BadPayloadError, StatesReader
from hsstore.verify.values import norm_histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from hsstore.dtype import DTypeName
    from hsstore.layout import Layout
    from hsstore.location import Location
    from hsstore.store import Completion


@dataclass(frozen=True, slots=True)
class RunTimes:
    """What the record of a run says about when it wrote."""

    started: float
    """Seconds since 1970."""
    ended: bool
    """True when it ended cleanly: it was neither killed nor broken in the middle of a commit."""


@dataclass(frozen=True, slots=True)
class BlockTask:
    """One block, and what the store promises of it."""

    root: Location
    dtype: DTypeName
    codec: dict[str, Any]
    """As the store records it."""
    layout: Layout
    """Of the samples of this block alone."""
    first_sample: int
    shards: range
    length: npt.NDArray[np.int32]
    completion: Completion
    damaged: frozenset[str]
    """Completion arrays whose chunk is damaged: any of their values may be wrong."""
    runs: tuple[RunTimes, ...]
    """Ascending by start."""
    chosen: npt.NDArray[np.bool_] | None = None
    """Which samples are looked at; None where all are, and the shards as wholes too."""


@dataclass(frozen=True, slots=True)
class BlockResult:
    """What was found in one block."""

    findings: list[Finding]
    checked: int
    tokens_checked: int
    norms: npt.NDArray[np.int64]
    """See `norm_histogram`."""


def check_block(task: BlockTask) -> BlockResult:
    """Check samples of a block against their completion bits and their digests."""
    reader = StatesReader(task.root, task.layout, task.dtype, task.codec)
    findings: list[Finding] = []
    checked: list[int] = []
    chosen = (
        range(len(task.length)) if task.chosen is None else np.flatnonzero(task.chosen).tolist()
    )
    for index in chosen:
        if task.completion.complete[index]:
            findings += _check_complete(task, reader, index)
            checked.append(index)
        else:
            findings += _check_incomplete(task, reader, index)
    if task.chosen is None:
        findings += _check_shards(task, reader, is_used=bool(checked))
    norms = norm_histogram(reader.mean_squares, task.layout.geometry.slots)
    return BlockResult(findings, len(checked), int(task.length[checked].sum()), norms)


def _check_complete(task: BlockTask, reader: StatesReader, index: int) -> Iterator[Finding]:
    sample = task.first_sample + index
    if code := int(task.completion.failed[index]):
        detail = f"complete is set, and failed is {code}"
        yield Finding(sample, BadKind.COMPLETE_AND_FAILED, detail)
    digest = int(task.completion.digest[index])
    try:
        yield from reader.check(index, int(task.length[index]), sample, digest)
    except BadPayloadError as error:
        yield Finding(sample, error.kind, str(error))


def _check_incomplete(task: BlockTask, reader: StatesReader, index: int) -> Iterator[Finding]:
    """Look for a bit that was lost, or a digest that was invented.

    A run that was killed between the rename of a shard and its bitmap leaves states without
    their bits: those samples are pending, and nothing is wrong.
    """
    sample = task.first_sample + index
    digest = int(task.completion.digest[index])
    if not digest:
        return
    if _holds(reader, index, int(task.length[index]), digest):
        if "complete" in task.damaged or not _was_interrupted(task, reader):
            detail = "states and digest are there and agree, but complete is not set"
            yield Finding(sample, BadKind.PAYLOAD_WITHOUT_BIT, detail)
    elif "digest" in task.damaged:
        detail = f"digest is {digest:016x}, and the sample has no such states"
        yield Finding(sample, BadKind.COMPLETION, detail)


def _holds(reader: StatesReader, index: int, length: int, digest: int) -> bool:
    try:
        return reader.digest(index, length) == digest
    except BadPayloadError:
        return False


def _was_interrupted(task: BlockTask, reader: StatesReader) -> bool:
    """Say whether the run that published the shard, going by the file's time, did not end.

    The time of an object may be that of a copy: there any run that did not end explains it.
    """
    if isinstance(task.root, RemotePath):
        return any(not run.ended for run in task.runs)
    published = max(reader.shard(shard).modified for shard in task.shards)
    ended = [run.ended for run in task.runs if run.started <= published]
    return bool(ended) and not ended[-1]


def _check_shards(task: BlockTask, reader: StatesReader, *, is_used: bool) -> Iterator[Finding]:
    """Check the shards as wholes: what belongs to no sample, and those that no sample is read from."""
    for shard, is_known in zip(task.shards, _chunks_of_samples(task), strict=True):
        try:
            is_there = reader.shard(shard).index[:, 0] != MISSING
        except BadPayloadError as error:
            if not is_used and error.kind is not BadKind.MISSING_SHARD:
                yield Finding(None, error.kind, f"{error}; no sample of it is complete")
            continue
        if strange := np.flatnonzero(is_there & ~is_known).tolist():
            name = shard_path(task.root, shard).name
            detail = f"{name}: {len(strange)} chunks, the first {strange[0]}, belong to no sample"
            yield Finding(None, BadKind.PADDING, detail)


def _chunks_of_samples(task: BlockTask) -> npt.NDArray[np.bool_]:
    """Mark the chunks that hold rows of a sample, bool (shards of the block, chunks of a shard)."""
    sizes = task.layout.geometry
    first = task.layout.row_start // sizes.chunk_rows - task.shards.start * (
        sizes.shard_rows // sizes.chunk_rows
    )
    change = np.zeros(len(task.shards) * sizes.shard_rows // sizes.chunk_rows + 1, np.int64)
    change[first] += 1
    change[first - (-task.length // sizes.chunk_rows)] -= 1
    row_chunks = np.cumsum(change[:-1]) > 0
    return np.repeat(row_chunks, sizes.slot_chunks).reshape(len(task.shards), -1)

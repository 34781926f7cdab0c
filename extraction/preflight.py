"""Can this run work at all? Answered with numbers before the first request."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from extraction.block_order import MAX_OPEN_BLOCKS
from extraction.spool import DUMP_OVERHEAD_BYTES
from hsstore.codec import DEFAULT_CODEC, USUAL_RATIOS
from hsstore.errors import RefusedError
from hsstore.spec import Record

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.layout import Layout

BEST_RATIO = 1.55
"""No lossless code does better: a disk without this much room cannot hold the store."""


@dataclass(frozen=True, slots=True)
class Space:
    """What a file system can still take."""

    free_bytes: int
    free_files: int | None
    """None where the file system does not count them."""


class Preflight(Record):
    """What a run needs, and what is there. Bytes."""

    samples: int
    """Pending: neither complete nor failed."""
    tokens: int
    shards: int
    files: int
    """New files, or objects, at most."""
    bytes_raw: int
    bytes_stored_estimate: int
    bytes_free: int
    files_free: int | None
    is_staged: bool
    """The store is in an object store, and what is free is free in the stage."""
    spool_budget_bytes: int
    """Of all servers' spools."""
    memory_bytes: int
    largest_dump_bytes: int
    too_large: tuple[int, ...]
    """Samples that fit neither the spool budget nor the memory budget."""
    problems: tuple[str, ...]
    """Why the run cannot work; empty when it can."""
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """Say it for people."""
        gb = 1e-9
        files, disk = ("objects", "in the stage") if self.is_staged else ("files", "on disk")
        need = (
            f"{self.samples:,} samples, {self.tokens:,} tokens: {self.bytes_raw * gb:,.3f} GB raw, "
            f"about {self.bytes_stored_estimate * gb:,.3f} GB stored in {self.files:,} {files}"
        )
        have = (
            f"{self.bytes_free * gb:,.2f} GB free {disk}; spool budget "
            f"{self.spool_budget_bytes * gb:,.3f} GB, memory budget {self.memory_bytes * gb:,.3f} "
            f"GB; the largest dump takes {self.largest_dump_bytes * gb:,.4f} GB"
        )
        return [need, have, *(f"warning: {warning}" for warning in self.warnings)]

    def refuse_problems(self) -> None:
        """Refuse to start when the run cannot work.

        Raises
        ------
        RefusedError
        """
        if self.problems:
            raise RefusedError("; ".join(self.problems))


def free_space(path: Path) -> Space:
    """Ask the file system of a path that may not exist yet."""
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    files = status.f_favail if status.f_files else None
    return Space(status.f_bavail * status.f_frsize, files)


def preflight(
    layout: Layout,
    length: npt.NDArray[np.int32],
    pending: npt.NDArray[np.bool_],
    *,
    space: Space,
    spool_budget_bytes: int,
    all_spools_bytes: int | None = None,
    memory_bytes: int,
    memory_free_bytes: int,
    skip_too_large: bool,
    staged_shard_bytes: int | None = None,
    usual_ratio: float = USUAL_RATIOS[DEFAULT_CODEC],
) -> Preflight:
    """Compare what a run needs with what is there. Pure: no I/O.

    Parameters
    ----------
    length : int (n,)
        Tokens of each sample of the plan.
    pending : bool (n,)
        The samples that the run would ask for.
    spool_budget_bytes : int
        Of one server's spool, the largest of several.
    all_spools_bytes : int, optional
        Of all servers together, where there are several.
    staged_shard_bytes : int, optional
        The store is in an object store, and `space` that of the stage: an open shard has so much there at most.
    usual_ratio : float
        Raw over stored bytes with the store's codec; 1 where it does not compress.
    """
    row_bytes = layout.geometry.row_bytes + np.dtype(np.int32).itemsize
    dump_bytes = length.astype(np.int64) * row_bytes + DUMP_OVERHEAD_BYTES
    limit = min(spool_budget_bytes, memory_bytes)
    too_large = np.flatnonzero(pending & (dump_bytes > limit))
    tokens = int(length[pending].sum(dtype=np.int64))
    raw = tokens * layout.geometry.row_bytes
    to_write = np.logical_or.reduceat(pending, layout.block_sample[:-1])
    shards_of_blocks = np.diff(layout.block_shard)[to_write]
    shards = int(shards_of_blocks.sum())
    largest = int(dump_bytes[pending].max(initial=0))
    problems = []
    warnings = []
    if too_large.size:
        message = (
            f"{too_large.size} samples (the first is sample {too_large[0]}) need up to "
            f"{largest:,} bytes, the spool budget is {spool_budget_bytes:,} and the memory "
            f"budget {memory_bytes:,}"
        )
        if skip_too_large:
            warnings.append(f"{message}: they will be marked as failed")
        else:
            problems.append(f"{message}: raise them, or skip these with --skip-too-large")
    files = shards + 3 * layout.spans
    if staged_shard_bytes is None:
        lacking, tight = _look_at_disk(space, raw, files, usual_ratio)
    else:
        at_once = MAX_OPEN_BLOCKS * int(shards_of_blocks.max(initial=0))
        lacking, tight = _look_at_stage(space, min(raw, at_once * staged_shard_bytes)), []
    problems += lacking
    warnings += tight
    if memory_free_bytes < memory_bytes:
        warnings.append(
            f"the memory budget is {memory_bytes:,} bytes, {memory_free_bytes:,} are free: lower "
            "it with --memory-gb"
        )
    return Preflight(
        samples=int(pending.sum()),
        tokens=tokens,
        shards=shards,
        files=files,
        bytes_raw=raw,
        bytes_stored_estimate=int(raw / usual_ratio),
        bytes_free=space.free_bytes,
        files_free=space.free_files,
        is_staged=staged_shard_bytes is not None,
        spool_budget_bytes=all_spools_bytes or spool_budget_bytes,
        memory_bytes=memory_bytes,
        largest_dump_bytes=largest,
        too_large=tuple(too_large.tolist()),
        problems=tuple(problems),
        warnings=tuple(warnings),
    )


def _look_at_disk(
    space: Space, raw: int, files: int, usual_ratio: float
) -> tuple[list[str], list[str]]:
    """Return what the disk lacks for the store, and what it may lack."""
    problems, warnings = [], []
    best_ratio = BEST_RATIO if usual_ratio > 1 else 1.0
    if space.free_bytes < raw / best_ratio:
        problems.append(
            f"the store needs about {raw / usual_ratio / 1e9:,.2f} GB more, and at least "
            f"{raw / best_ratio / 1e9:,.2f} GB; {space.free_bytes / 1e9:,.2f} GB are free"
        )
    elif space.free_bytes < raw:
        warnings.append(
            f"{space.free_bytes / 1e9:,.2f} GB are free for {raw / 1e9:,.2f} GB raw: it will be "
            "tight, should these states compress badly"
        )
    if space.free_files is not None and space.free_files < files:
        problems.append(f"{files:,} files are needed, the file system has {space.free_files:,}")
    return problems, warnings


def _look_at_stage(space: Space, staged: int) -> list[str]:
    """Return what the disk of the stage lacks."""
    if space.free_bytes >= staged:
        return []
    text = (
        f"what is on its way to the object store takes up to {staged / 1e9:,.2f} GB here, "
        f"{space.free_bytes / 1e9:,.2f} GB are free: name another directory with --stage"
    )
    return [text]

"""Check what was fixed when the store was created: zarr.json files, plan, records of runs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from hsstore.arrays import ROWS_A_CHUNK
from hsstore.digest import PlanHasher
from hsstore.errors import CorruptStoreError
from hsstore.report import BadKind
from hsstore.seal import damaged_arrays
from hsstore.verify.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from hsstore.store import Store

SAMPLE_ARRAYS = ("row_start", "length", "sample_id", "split", "metadata_end")
ROW_ARRAYS = ("input_ids", "loss_mask")
OTHER_ARRAYS = ("norm_weight", "golden")
HASHED = ("row_start", "length", *ROW_ARRAYS, "sample_id", "split")
"""In the order of the plan hash."""
UNREADABLE = (CorruptStoreError, OSError)
AT_ONCE = 1 << 20
"""Rows, samples or bytes that are read at once: few, whatever the size of the store."""


def check_metadata(store: Store) -> Iterator[Finding]:
    """Check every array's zarr.json against the seal."""
    for problem in damaged_arrays(store.spec, store.location).values():
        yield Finding(None, BadKind.METADATA, problem)


def check_runs(store: Store) -> Iterator[Finding]:
    """Check that the records of all runs can be read."""
    try:
        for record in store.runs():
            datetime.fromisoformat(record.started)
    except (CorruptStoreError, ValueError) as error:
        yield Finding(None, BadKind.RUN, str(error))


def check_lengths(store: Store) -> Iterator[Finding]:
    """Check the array from which everything else follows; without it nothing can be checked."""
    dataset = store.spec.dataset
    try:
        length = store.length
    except UNREADABLE as error:
        yield Finding(None, BadKind.PLAN, str(error))
        return
    tokens = int(length.sum(dtype=np.int64))
    if length.shape != (dataset.samples,) or tokens != dataset.tokens or length.min() < 1:
        detail = (
            f"length has {length.size} samples of {tokens} tokens, the least {length.min()}; "
            f"the attributes say {dataset.samples} samples of {dataset.tokens}"
        )
        yield Finding(None, BadKind.PLAN, detail)


def check_plan(store: Store) -> Iterator[Finding]:
    """Check that the arrays of the plan are readable, consistent, and those of the plan hash.

    Reads each array once, a part at a time; the ids and `row_start` a second time.
    """
    hasher = PlanHasher()
    unreadable = [
        *_check_files(store),
        *_check_others(store),
        *(finding for name in HASHED for finding in _hash(store, name, hasher)),
    ]
    if unreadable:
        yield from unreadable
        return
    yield from _check_row_start(store)
    yield from check_sample_ids(store)
    yield from _check_splits(store)
    if hasher.hexdigest() != store.spec.plan_hash:
        detail = "row_start, length, input_ids, loss_mask, sample_id or split has changed"
        yield Finding(None, BadKind.PLAN, detail)


def _check_files(store: Store) -> Iterator[Finding]:
    for name in (*SAMPLE_ARRAYS, *ROW_ARRAYS, "metadata", *OTHER_ARRAYS):
        try:
            missing = store.missing_chunks(name)
        except UNREADABLE as error:
            yield Finding(None, BadKind.PLAN, str(error))
            continue
        if missing > 0:
            detail = f"array {name}: {missing} chunk files are missing or empty"
            yield Finding(None, BadKind.PLAN, detail)


def _check_others(store: Store) -> Iterator[Finding]:
    """Read what is in no hash: its crc32c is all there is."""
    try:
        for window in _windows(len(store)):
            store.plan_array("metadata_end", window)
        metadata_bytes = int(store.plan_array("metadata_end", slice(len(store) - 1, None))[0])
        for name in OTHER_ARRAYS:
            store.plan_array(name)
        for window in _windows(metadata_bytes):
            store.plan_array("metadata", window)
    except UNREADABLE as error:
        yield Finding(None, BadKind.PLAN, str(error))


def _hash(store: Store, name: str, hasher: PlanHasher) -> Iterator[Finding]:
    """Hash an array of the plan; yield the parts of it that cannot be read."""
    try:
        nothing = store.plan_array(name, slice(0, 0))
    except UNREADABLE:
        return  # its zarr.json: reported with the files
    of_rows = name in ROW_ARRAYS
    size = store.spec.dataset.tokens if of_rows else len(store)
    hasher.begin(nothing.dtype, (size, *nothing.shape[1:]))
    for window in _windows(store.layout.rows if of_rows else size):
        try:
            values = store.plan_array(name, window)
        except UNREADABLE as error:
            yield from _name_chunks(store, name, window) if of_rows else [_unreadable(error)]
        else:
            hasher.update(values[_used_rows(store, window)] if of_rows else values)


def _unreadable(error: Exception) -> Finding:
    return Finding(None, BadKind.PLAN, str(error))


def _name_chunks(store: Store, name: str, window: slice) -> Iterator[Finding]:
    """Find the chunks of a row array that cannot be read, and name their samples."""
    for start in range(window.start, window.stop, ROWS_A_CHUNK):
        chunk = slice(start, min(start + ROWS_A_CHUNK, window.stop))
        try:
            store.plan_array(name, chunk)
        except UNREADABLE as error:
            samples = _samples_in(store, chunk)
            sample = samples.start if len(samples) == 1 else None
            where = f"rows {chunk.start} to {chunk.stop - 1}"
            if len(samples):
                where += f", samples {samples.start} to {samples.stop - 1}"
            yield Finding(sample, BadKind.PLAN, f"{error} ({where})")


def _windows(size: int) -> Iterator[slice]:
    """Yield an axis in pieces of whole chunks."""
    for start in range(0, size, AT_ONCE):
        yield slice(start, min(start + AT_ONCE, size))


def _samples_in(store: Store, window: slice) -> range:
    """Return the samples that have rows in a window."""
    row_start = store.layout.row_start
    first, end = np.searchsorted(row_start, [window.start, window.stop]).tolist()
    if first and row_start[first - 1] + store.length[first - 1] > window.start:
        first -= 1
    return range(first, end)


def _check_row_start(store: Store) -> Iterator[Finding]:
    differ, first = 0, ""
    sample = 0
    for window in _windows(len(store)):
        found, expected = store.plan_array("row_start", window), store.layout.row_start[window]
        wrong = np.flatnonzero(found != expected).tolist()
        differ += len(wrong)
        if wrong and not first:
            sample = window.start + wrong[0]
            first = f"row_start is {found[wrong[0]]}, the lengths give {expected[wrong[0]]}"
    if differ:
        yield Finding(sample, BadKind.PLAN, f"{first}; {differ} samples differ")


def check_sample_ids(store: Store) -> Iterator[Finding]:
    """Name every sample whose id is that of an earlier one.

    Sorts hashes of 8 bytes, and reads the ids of equal ones again.
    """
    hashes = np.concatenate(
        [_hash_rows(store.plan_array("sample_id", window)) for window in _windows(len(store))]
    )
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    del hashes
    suspects = np.unique(np.concatenate([order[same], order[same + 1]]))
    earlier, later = order[same], order[same + 1]
    del order
    ids = _ids_of(store, suspects)
    first: dict[int, int] = {}
    for one, other in zip(earlier.tolist(), later.tolist(), strict=True):
        at = np.searchsorted(suspects, [one, other])
        if np.array_equal(*ids[at]):
            first[other] = first.get(one, one)
    for sample in sorted(first):
        detail = f"sample_id is the same as that of sample {first[sample]}"
        yield Finding(sample, BadKind.PLAN, detail)


def _hash_rows(ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Hash every row of a matrix of bytes, (n, width): no loop runs over rows."""
    padded = np.zeros((len(ids), -(-ids.shape[1] // 8) * 8), np.uint8)
    padded[:, : ids.shape[1]] = ids
    hashes = np.zeros(len(ids), np.uint64)
    for word in padded.view(np.uint64).T:
        hashes = (hashes ^ word) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _ids_of(store: Store, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Read the padded ids of some samples, ascending."""
    parts = []
    for window in _windows(len(store)):
        here = samples[slice(*np.searchsorted(samples, [window.start, window.stop]).tolist())]
        if here.size:
            parts.append(store.plan_array("sample_id", window)[here - window.start])
    return np.concatenate(parts) if parts else np.zeros((0, 1), np.uint8)


def _check_splits(store: Store) -> Iterator[Finding]:
    names = store.spec.dataset.split_names
    for window in _windows(len(store)):
        split = store.plan_array("split", window)
        for sample in np.flatnonzero(split >= len(names)).tolist():
            detail = f"split {split[sample]} has no name"
            yield Finding(window.start + sample, BadKind.PLAN, detail)


def _used_rows(store: Store, window: slice) -> npt.NDArray[np.bool_]:
    """Mark the rows of a window that belong to a sample."""
    samples = _samples_in(store, window)
    inside = slice(samples.start, samples.stop)
    start = store.layout.row_start[inside]
    size = window.stop - window.start
    change = np.zeros(size + 1, np.int8)
    change[np.maximum(start - window.start, 0)] += 1
    change[np.minimum(start + store.length[inside] - window.start, size)] -= 1
    return np.cumsum(change[:-1], dtype=np.int8).astype(np.bool_)

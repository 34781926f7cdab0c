"""Check what was fixed when the store was created: zarr.json files, plan, records of runs."""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.arrays import ROWS_A_CHUNK
from hsstore.digest import PlanHasher
from hsstore.errors import CorruptStoreError
from hsstore.report import BadKind
from hsstore.seal import damaged_arrays
from hsstore.verify.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from hsstore.store import Store

    _Look = Callable[[int, npt.NDArray[Any]], None]
    """Takes the number of the first sample, and a part of an array from there on."""

ROW_ARRAYS = ("input_ids", "loss_mask")
HASHED = ("row_start", "length", *ROW_ARRAYS, "sample_id", "split")
"""In the order of the plan hash."""
UNHASHED = ("metadata_end", "metadata", "norm_weight", "golden")
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

    Has read each array once, a part at a time, when it returns; ids that may be equal are read once more.
    """
    hasher = PlanHasher()
    row_starts, ids, splits = _RowStarts(store), _Ids(), _Splits(store)
    looks: dict[str, _Look] = {
        "row_start": row_starts.look,
        "sample_id": ids.look,
        "split": splits.look,
    }
    unreadable = [
        *(finding for name in HASHED for finding in _read(store, name, hasher, looks.get(name))),
        *_read_others(store),
    ]
    if unreadable:
        return iter(unreadable)
    detail = "row_start, length, input_ids, loss_mask, sample_id or split has changed"
    has_changed = hasher.hexdigest() != store.spec.plan_hash
    return chain(
        row_starts.findings(),
        ids.findings(store),
        splits.findings(),
        [Finding(None, BadKind.PLAN, detail)] if has_changed else [],
    )


def _read(store: Store, name: str, hasher: PlanHasher, look: _Look | None) -> Iterator[Finding]:
    """Hash an array of the plan, and look at it; yield the parts of it that cannot be read."""
    try:
        yield from _count_files(store, name)
    except UNREADABLE as error:
        yield _unreadable(error)
        return
    of_rows = name in ROW_ARRAYS
    size = store.spec.dataset.tokens if of_rows else len(store)
    for window in _windows(store.layout.rows if of_rows else size):
        try:
            values = store.plan_array(name, window)
        except UNREADABLE as error:
            yield from _name_chunks(store, name, window) if of_rows else [_unreadable(error)]
            continue
        if not window.start:
            hasher.begin(values.dtype, (size, *values.shape[1:]))
        hasher.update(values[_used_rows(store, window)] if of_rows else values)
        if look:
            look(window.start, values)


def _count_files(store: Store, name: str) -> Iterator[Finding]:
    if (missing := store.missing_chunks(name)) > 0:
        detail = f"array {name}: {missing} chunk files are missing or empty"
        yield Finding(None, BadKind.PLAN, detail)


def _read_others(store: Store) -> Iterator[Finding]:
    """Read what is in no hash: its crc32c is all there is."""
    for name in UNHASHED:
        try:
            yield from _count_files(store, name)
        except UNREADABLE as error:
            yield _unreadable(error)
    try:
        store.plan_array("norm_weight")
        store.plan_array("golden")
        ends = [store.plan_array("metadata_end", window)[-1] for window in _windows(len(store))]
        for window in _windows(int(ends[-1])):
            store.plan_array("metadata", window)
    except UNREADABLE as error:
        yield _unreadable(error)


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


class _RowStarts:
    """Compares `row_start` with what follows from the lengths."""

    def __init__(self, store: Store) -> None:
        self._expected = store.layout.row_start
        self._differ = 0
        self._first: tuple[int, int] | None = None
        """Sample, and what was found there."""

    def look(self, start: int, row_start: npt.NDArray[Any]) -> None:
        differ = row_start != self._expected[start : start + len(row_start)]
        self._differ += int(differ.sum())
        if self._first is None and differ.any():
            at = int(differ.argmax())
            self._first = start + at, int(row_start[at])

    def findings(self) -> Iterator[Finding]:
        if self._first is not None:
            sample, found = self._first
            detail = f"row_start is {found}, the lengths give {self._expected[sample]}"
            yield Finding(sample, BadKind.PLAN, f"{detail}; {self._differ} samples differ")


class _Ids:
    """Names every sample whose id is that of an earlier one.

    Keeps and sorts hashes of 8 bytes, and reads the ids of equal ones again.
    """

    def __init__(self) -> None:
        self._hashes: list[npt.NDArray[np.uint64]] = []

    def look(self, _: int, ids: npt.NDArray[Any]) -> None:
        self._hashes.append(_hash_rows(ids))

    def findings(self, store: Store) -> Iterator[Finding]:
        hashes = np.concatenate(self._hashes)
        self._hashes.clear()
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


class _Splits:
    """Names every sample whose split has no name."""

    def __init__(self, store: Store) -> None:
        self._names = len(store.spec.dataset.split_names)
        self._nameless: list[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]] = []

    def look(self, start: int, split: npt.NDArray[Any]) -> None:
        at = np.flatnonzero(split >= self._names)
        self._nameless.append((start + at, split[at]))

    def findings(self) -> Iterator[Finding]:
        for samples, splits in self._nameless:
            for sample, split in zip(samples.tolist(), splits.tolist(), strict=True):
                yield Finding(sample, BadKind.PLAN, f"split {split} has no name")


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

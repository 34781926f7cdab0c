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
OTHER_ARRAYS = ("metadata", "norm_weight", "golden")


def check_metadata(store: Store) -> Iterator[Finding]:
    """Check every array's zarr.json against the seal."""
    for problem in damaged_arrays(store.spec, store.path).values():
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
    except CorruptStoreError as error:
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

    Reads `input_ids` and `loss_mask` chunk by chunk.
    """
    unreadable = [*_check_readable(store), *_check_rows(store)]
    if unreadable:
        yield from unreadable
        return
    yield from _check_row_start(store)
    yield from _check_sample_ids(store)
    yield from _check_splits(store)
    if _plan_hash(store) != store.spec.plan_hash:
        detail = "row_start, length, input_ids, loss_mask, sample_id or split has changed"
        yield Finding(None, BadKind.PLAN, detail)


def _check_readable(store: Store) -> Iterator[Finding]:
    for name in (*SAMPLE_ARRAYS, *OTHER_ARRAYS):
        try:
            store.plan_array(name)
        except CorruptStoreError as error:
            yield Finding(None, BadKind.PLAN, str(error))
    for name in (*SAMPLE_ARRAYS, *ROW_ARRAYS, *OTHER_ARRAYS):
        try:
            missing = store.missing_chunks(name)
        except CorruptStoreError:
            continue  # reported above, or by the rows
        if missing:
            yield Finding(
                None, BadKind.PLAN, f"array {name}: {missing} chunk files are missing or empty"
            )


def _check_rows(store: Store) -> Iterator[Finding]:
    for name in ROW_ARRAYS:
        for window in _windows(store):
            try:
                store.plan_array(name, window)
            except CorruptStoreError as error:
                samples = _samples_in(store, window)
                sample = samples.start if len(samples) == 1 else None
                where = f"rows {window.start} to {window.stop - 1}"
                if len(samples):
                    where += f", samples {samples.start} to {samples.stop - 1}"
                yield Finding(sample, BadKind.PLAN, f"{error} ({where})")


def _windows(store: Store) -> Iterator[slice]:
    """Yield the row axis in pieces of one chunk."""
    for start in range(0, store.layout.rows, ROWS_A_CHUNK):
        yield slice(start, min(start + ROWS_A_CHUNK, store.layout.rows))


def _samples_in(store: Store, window: slice) -> range:
    row_start = store.layout.row_start
    first = int(np.searchsorted(row_start + store.length, window.start, side="right"))
    return range(first, int(np.searchsorted(row_start, window.stop)))


def _check_row_start(store: Store) -> Iterator[Finding]:
    found, expected = store.plan_array("row_start"), store.layout.row_start
    if not np.array_equal(found, expected):
        wrong = np.flatnonzero(found != expected).tolist()
        first = wrong[0]
        detail = (
            f"row_start is {found[first]}, the lengths give {expected[first]}; "
            f"{len(wrong)} samples differ"
        )
        yield Finding(first, BadKind.PLAN, detail)


def _check_sample_ids(store: Store) -> Iterator[Finding]:
    packed = store.plan_array("sample_id")
    ids = np.ascontiguousarray(packed).view(f"S{packed.shape[1]}").ravel()
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    for sample in np.flatnonzero(first[inverse] != np.arange(len(ids))).tolist():
        detail = f"sample_id is the same as that of sample {first[inverse[sample]]}"
        yield Finding(sample, BadKind.PLAN, detail)


def _check_splits(store: Store) -> Iterator[Finding]:
    names = store.spec.dataset.split_names
    split = store.plan_array("split")
    for sample in np.flatnonzero(split >= len(names)).tolist():
        yield Finding(sample, BadKind.PLAN, f"split {split[sample]} has no name")


def _plan_hash(store: Store) -> str:
    hasher = PlanHasher()
    for name in ("row_start", "length"):
        _hash_whole(hasher, store.plan_array(name))
    for name in ROW_ARRAYS:
        hasher.begin(store.plan_array(name, slice(0, 1)).dtype, (store.spec.dataset.tokens,))
        for window in _windows(store):
            hasher.update(store.plan_array(name, window)[_used_rows(store, window)])
    for name in ("sample_id", "split"):
        _hash_whole(hasher, store.plan_array(name))
    return hasher.hexdigest()


def _hash_whole(hasher: PlanHasher, array: npt.NDArray[np.generic]) -> None:
    hasher.begin(array.dtype, array.shape)
    hasher.update(array)


def _used_rows(store: Store, window: slice) -> npt.NDArray[np.bool_]:
    """Mark the rows of a window that belong to a sample."""
    samples = _samples_in(store, window)
    inside = slice(samples.start, samples.stop)
    start = store.layout.row_start[inside]
    size = window.stop - window.start
    change = np.zeros(size + 1, np.int8)
    change[np.maximum(start - window.start, 0)] += 1
    change[np.minimum(start + store.length[inside] - window.start, size)] -= 1
    return np.cumsum(change[:-1]).astype(np.bool_)

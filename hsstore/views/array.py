"""The rows of a store as a Dask array, or as several that are cut alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import dask
import dask.array as da
import numpy as np
from dask.utils import parse_bytes

from hsstore.dtype import native_dtype
from hsstore.views.rows import RowAxis, complete_axis, store_axis
from hsstore.views.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from hsstore.store import Store
    from hsstore.views.rows import Part

Column: TypeAlias = Literal["hidden_states", "input_ids", "loss_mask", "sample", "position"]
"""`sample` and `position` say of each row which sample it belongs to, and which token of it it is."""

_DTYPES = {"input_ids": "i4", "loss_mask": "u1", "sample": "i8", "position": "i4"}
_FILL = {"input_ids": 0, "loss_mask": 0, "sample": -1, "position": -1}
"""Where there is no sample, with `padding`; states are NaN there."""

CONVERTED_CHUNKS = 4
"""Chunks of the store that are decoded before they are converted."""


def to_dask_array(
    store: Store,
    column: Column = "hidden_states",
    *,
    slots: Sequence[int] | None = None,
    dtype: npt.DTypeLike | None = np.float32,
    padding: bool = False,
) -> da.Array:
    """Return the rows of the samples that are complete now, as a Dask array cut along the shards.

    Rows of samples that are pending or failed, and the empty rows between samples, are not in it: a mean
    over it is a mean over tokens. What is completed later is not in it either.

    Parameters
    ----------
    column : str
        `hidden_states`; `input_ids` or `loss_mask`; or `sample` and `position`, which say of each row
        which sample it belongs to and which of its tokens it is. All are cut alike, for the same
        `slots` and `dtype`.
    slots : ints, optional
        Which slots, in this order; all if it is left out. Others are not read, where a chunk of the
        store holds one slot.
    dtype : float32, float64 or None
        Of the states; None is the store's own. In bfloat16 a sum stops growing after a few hundred
        values, and Dask's `mean` is silently wrong: ask for it only to look at single values.
    padding : bool
        Take the row axis of the store as it is: row `row_start[i] + t` is token t of sample i, one
        chunk is one shard, and rows without a complete sample are NaN (0 in `input_ids` and
        `loss_mask`, -1 in `sample` and `position`). For results that are written to such an axis.

    Returns
    -------
    dask.array.Array
        (rows, slots, hidden) of states, otherwise (rows,). A chunk is of one shard; without padding it
        has at most Dask's `array.chunk-size` bytes of states, or one chunk of the store. What a task
        gets cannot be written to.

    Raises
    ------
    ValueError, IndexError
        There is no such column, dtype or slot.

    Computing it raises `NotExtractedError` where a sample was taken back since, `CorruptStoreError`
    where one is damaged, and `InputError` where a worker does not see the store.
    """
    if column not in get_args(Column):
        raise ValueError(f"column {column!r}: not one of {', '.join(get_args(Column))}")
    view = _view(store, column, slots, dtype, padding=padding)
    array: da.Array = da.from_array(
        view,
        chunks=(view.axis.chunks, *view.shape[1:]) if view.axis.chunks else "auto",
        name=f"hsstore-{column}-{dask.base.tokenize(view)}",
        asarray=False,
        meta=np.empty((0,) * len(view.shape), view.dtype),
    )
    return array


def _view(
    store: Store,
    column: Column,
    slots: Sequence[int] | None,
    dtype: npt.DTypeLike | None,
    *,
    padding: bool,
) -> RowsView:
    chosen = tuple(range(store.spec.model.slots) if slots is None else slots)
    if not all(0 <= slot < store.spec.model.slots for slot in chosen):
        raise IndexError(
            f"slots {list(chosen)}: the store has slots 0 to {store.spec.model.slots - 1}"
        )
    is_states = column == "hidden_states"
    wanted = _states_dtype(store, dtype) if is_states else np.dtype(_DTYPES[column])
    inner = (len(chosen), store.spec.model.hidden) if is_states else ()
    # All columns are cut as the states are, so that they can be used together.
    row_bytes = max(len(chosen), 1) * store.spec.model.hidden * _states_dtype(store, dtype).itemsize
    axis = _axis(store, row_bytes, padding=padding)
    return RowsView(Source.of(store), axis, column, chosen, wanted, inner)


def _states_dtype(store: Store, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    own = native_dtype(store.spec.model.dtype)
    wanted = own if dtype is None else np.dtype(dtype)
    if wanted not in {own, np.dtype(np.float32), np.dtype(np.float64)}:
        raise ValueError(f"dtype {wanted}: only float32, float64 or the store's own, {own}")
    return wanted


def _axis(store: Store, row_bytes: int, *, padding: bool) -> RowAxis:
    complete = store.completion().complete
    if padding:
        return store_axis(store.layout, store.length, complete)
    chunk_bytes = parse_bytes(dask.config.get("array.chunk-size"))
    return complete_axis(store.layout, store.length, complete, max(chunk_bytes // row_bytes, 1))


@dataclass(frozen=True, slots=True, eq=False)
class RowsView:
    """What Dask slices: reads any rows of a store, and only these. Pickled, it is small."""

    source: Source
    axis: RowAxis
    column: Column
    slots: tuple[int, ...]
    dtype: np.dtype[Any]
    inner: tuple[int, ...]
    """Shape of one row: (slots, hidden) for states, else ()."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, then the shape of one row."""
        return (int(self.axis.cuts[-1]), *self.inner)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return 1 + len(self.inner)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Name equal views equally."""
        axis = self.axis
        cuts = axis.cuts.tobytes()
        return (
            self.source.path,
            self.source.uuid,
            axis.padding,
            axis.complete.packed,
            cuts,
            self.column,
            self.slots,
            str(self.dtype),
        )

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:  # noqa: ANN401  # as numpy's
        """Read the smallest range of rows, and of slots, that the keys of all axes lie in."""
        keys = (*(key if isinstance(key, tuple) else (key,)), *[slice(None)] * self.ndim)
        keys = keys[: self.ndim]
        rows, inside = _range(keys[0], self.shape[0])
        if not self.inner:
            return _frozen(np.asarray(self._read_column(rows)[inside]))
        slots, slot_inside = _range(keys[1], len(self.slots))
        states = self._read_states(rows, [self.slots[slot] for slot in slots])
        # Integers drop an axis: one after the other, from the last.
        return _frozen(np.asarray(states[..., keys[2]][:, slot_inside][inside]))

    def _read_states(self, rows: range, slots: list[int]) -> npt.NDArray[Any]:
        store = self.source.open()
        out = np.empty((len(rows), len(slots), self.inner[1]), self.dtype)
        filled = 0
        for part in self.axis.parts(store.index, rows.start, rows.stop):
            out[filled : part.target.start] = np.nan
            filled = part.target.stop
            target = out[part.target]
            if self.dtype == native_dtype(store.spec.model.dtype):
                store.states(part.sample, rows=part.rows, slots=slots, out=target)
            else:
                _convert(store, part, slots, target)
        out[filled:] = np.nan
        return out

    def _read_column(self, rows: range) -> npt.NDArray[Any]:
        store = self.source.open()
        out = np.full(len(rows), _FILL[self.column], self.dtype)
        parts = list(self.axis.parts(store.index, rows.start, rows.stop))
        if not parts:
            return out
        values = _COLUMNS.get(self.column) or _plan_rows(store, self.column, parts)
        for part in parts:
            out[part.target] = values(part)
        return out


def _convert(store: Store, part: Part, slots: list[int], target: npt.NDArray[Any]) -> None:
    """Convert a few chunks at a time: a long sample is never in memory twice."""
    step = CONVERTED_CHUNKS * store.spec.geometry.chunk_rows
    row = part.rows.start
    while row < part.rows.stop:
        stop = min(row // step * step + step, part.rows.stop)
        there = slice(row - part.rows.start, stop - part.rows.start)
        target[there] = store.states(part.sample, rows=slice(row, stop), slots=slots)
        row = stop


_COLUMNS: dict[str, Callable[[Part], Any]] = {
    "sample": lambda part: part.sample,
    "position": lambda part: np.arange(part.rows.start, part.rows.stop),
}


def _plan_rows(store: Store, column: str, parts: list[Part]) -> Callable[[Part], npt.NDArray[Any]]:
    """Read an array of the plan in one go: samples of one chunk lie near each other."""
    start = store.index.row_start
    first = start[parts[0].sample] + parts[0].rows.start
    values = store.plan_array(column, slice(first, start[parts[-1].sample] + parts[-1].rows.stop))

    def rows_of(part: Part) -> npt.NDArray[Any]:
        begin = start[part.sample] - first
        return values[begin + part.rows.start : begin + part.rows.stop]

    return rows_of


def _range(key: Any, size: int) -> tuple[range, Any]:  # noqa: ANN401  # as numpy's
    """Return the smallest range that the key of an axis lies in, and the key within it.

    >>> _range(slice(8, 2, -3), 10), _range(-1, 10), _range([4, 2], 10)
    ((range(5, 9), slice(3, None, -3)), (range(9, 10), 0), (range(2, 5), array([2, 0])))
    """
    if isinstance(key, list | np.ndarray):
        chosen = np.arange(size)[np.asarray(key)]
        low, high = int(chosen.min(initial=size)), int(chosen.max(initial=-1))
        return range(low, high + 1), chosen - low
    if not isinstance(key, slice):
        at = range(size)[key]
        return range(at, at + 1), 0
    wanted = range(size)[key]
    if not wanted:
        return range(0), slice(0)
    low, high = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1])
    inside = (
        slice(None, None, wanted.step) if wanted.step > 0 else slice(high - low, None, wanted.step)
    )
    return range(low, high + 1), inside


def _frozen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Keep tasks that share a chunk from changing it under each other."""
    values.flags.writeable = False
    return values

"""The row axis of a view: which row of which sample lies where, and where the axis is cut. Pure.

Rows of complete samples follow each other without gaps; or, with padding, they lie where they lie in
the store. Either way no chunk of a view reaches into two shards::

    store      | a a a . | b b b b | . . . . | c c d d |     four shards, one sample is pending
    complete   | a a a   | b b b b |         | c c d d |     chunks of 3, 4 and 4 rows
    padding    | a a a N | b b b b | N N N N | c c d d |     chunks of 4 rows; N is NaN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from hsstore.index import SampleIndex
    from hsstore.layout import Layout

    Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which samples were complete at one moment: one bit each, for it goes to every worker."""

    samples: int
    packed: bytes

    @classmethod
    def of(cls, complete: npt.NDArray[np.bool_]) -> Snapshot:
        """Keep a completion bitmap, bool (n,)."""
        return cls(len(complete), np.packbits(complete).tobytes())

    def __contains__(self, sample: int) -> bool:
        """Say whether a sample was complete."""
        byte, bit = divmod(sample, 8)
        return bool(self.packed[byte] >> (7 - bit) & 1)


@dataclass(frozen=True, slots=True)
class Part:
    """What one sample contributes to a range of rows."""

    sample: int
    rows: slice
    """Of the sample."""
    target: slice
    """Where they go, counted from the first row of the range."""


@dataclass(frozen=True, slots=True, eq=False)
class RowAxis:
    """One row axis.

    Attributes
    ----------
    cuts : int64 (chunks + 1,)
        First row of each chunk, and the number of rows.
    first_sample : int64 (chunks,)
        The sample that the first row of each chunk belongs to; with padding, the first one that has not
        ended before it.
    origin : int64 (chunks,)
        Row of this axis at which that sample begins, in a chunk before perhaps.
    """

    padding: bool
    cuts: Int64s
    first_sample: Int64s
    origin: Int64s
    complete: Snapshot

    @property
    def chunks(self) -> tuple[int, ...]:
        """Rows of each chunk."""
        return tuple(np.diff(self.cuts).tolist())

    def parts(self, index: SampleIndex, start: int, stop: int) -> Iterator[Part]:
        """Yield what lies in the rows `start` to `stop`, sample by sample."""
        if start >= stop:
            return
        chunk = int(np.searchsorted(self.cuts, start, side="right")) - 1
        begin = int(self.origin[chunk])
        for sample in range(int(self.first_sample[chunk]), self.complete.samples):
            if self.padding:
                begin = index.row_start[sample]
            if begin >= stop:
                return
            if sample not in self.complete:
                continue
            end = begin + index.length[sample]
            first, last = max(begin, start), min(end, stop)
            if first < last:
                yield Part(
                    sample, slice(first - begin, last - begin), slice(first - start, last - start)
                )
            begin = end


def complete_axis(
    layout: Layout, length: npt.NDArray[np.int32], complete: npt.NDArray[np.bool_], chunk_rows: int
) -> RowAxis:
    """Lay out the rows of complete samples, in dataset order and without gaps.

    Parameters
    ----------
    length : int32 (n,)
    complete : bool (n,)
    chunk_rows : int
        Rows of a chunk, at most; but a chunk of the store, which is decoded whole, is never cut.
    """
    spans = [
        _cut_span(layout, layout.span_slice(span), length, complete, chunk_rows)
        for span in range(layout.spans)
    ]
    rows, first_sample, first_row = (np.concatenate(column) for column in zip(*spans, strict=True))
    cuts = np.concatenate([[0], np.cumsum(rows)])
    origin = cuts[:-1] - first_row
    return RowAxis(
        padding=False,
        cuts=cuts,
        first_sample=first_sample,
        origin=origin,
        complete=Snapshot.of(complete),
    )


def _cut_span(
    layout: Layout,
    span: slice,
    length: npt.NDArray[np.int32],
    complete: npt.NDArray[np.bool_],
    chunk_rows: int,
) -> tuple[Int64s, Int64s, Int64s]:
    """Cut the complete rows of a span, which shares no shard with another one.

    Returns
    -------
    rows, first_sample, first_row : int64 (chunks,)
        Of each chunk; `first_row` within its sample.
    """
    sizes = layout.geometry
    samples = span.start + np.flatnonzero(complete[span])
    tokens = length[samples].astype(np.int64)
    pieces = -(-tokens // sizes.chunk_rows)
    # A piece is what a chunk of the store holds of a sample.
    sample = np.repeat(samples, pieces)
    number = np.arange(len(sample)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    row = number * sizes.chunk_rows
    end = np.cumsum(np.minimum(length[sample] - row, sizes.chunk_rows, dtype=np.int64))
    shard = (layout.row_start[sample] + row) // sizes.shard_rows
    firsts = np.array(_cut(end, shard, chunk_rows), dtype=np.int64)
    start = np.concatenate([[0], end])[firsts]
    rows = np.diff(np.append(start, end[-1:]))
    return rows, sample[firsts], row[firsts]


def _cut(end: Int64s, shard: Int64s, most: int) -> list[int]:
    """Return the first piece of each chunk: as many pieces as fit, all of one shard.

    >>> _cut(np.array([4, 6, 10, 14, 16]), np.array([0, 0, 0, 0, 1]), 10)
    [0, 3, 4]
    """
    start = np.concatenate([[0], end])[:-1]
    following = np.searchsorted(end, start + most, side="right")
    shard_end = np.searchsorted(shard, shard, side="right")
    following = np.minimum(np.maximum(following, np.arange(1, len(end) + 1)), shard_end)
    cuts, piece = [], 0
    while piece < len(end):
        cuts.append(piece)
        piece = int(following[piece])
    return cuts


def store_axis(
    layout: Layout, length: npt.NDArray[np.int32], complete: npt.NDArray[np.bool_]
) -> RowAxis:
    """Take the store's own row axis, one chunk a shard."""
    cuts = np.arange(layout.shards + 1, dtype=np.int64) * layout.geometry.shard_rows
    first_sample = np.searchsorted(layout.row_start + length, cuts[:-1], side="right")
    origin = layout.row_start[np.minimum(first_sample, layout.samples - 1)]
    return RowAxis(
        padding=True,
        cuts=cuts,
        first_sample=first_sample,
        origin=origin,
        complete=Snapshot.of(complete),
    )

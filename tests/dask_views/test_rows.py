"""Where rows lie and where they are cut, for any store: no chunk reaches into two shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings, strategies as st

from hsstore.layout import Geometry, chunks_at, plan_layout
from hsstore.views.rows import RowAxis, Snapshot, complete_axis, store_axis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.layout import Layout

CHUNK_ROWS = 4


class _Index:
    """What a reader knows of a layout, without files."""

    def __init__(self, layout: Layout, length: Any) -> None:
        self.row_start, self.length = layout.row_start.tolist(), length.tolist()


@st.composite
def _stores(draw: st.DrawFn) -> tuple[Layout, Any, Any]:
    length = np.array(draw(st.lists(st.integers(1, 60), min_size=1, max_size=25)), np.int32)
    complete = np.array(
        draw(st.lists(st.booleans(), min_size=len(length), max_size=len(length))), np.bool_
    )
    shard_chunks, span = draw(st.integers(1, 6)), draw(st.integers(1, 30))
    sizes = Geometry(3, 8, 2, CHUNK_ROWS, 3, shard_chunks * CHUNK_ROWS, span)
    return plan_layout(length, sizes), length, complete


def _shards(layout: Layout, axis: RowAxis, length: Any) -> Iterator[set[int]]:
    """Yield the shards that each chunk of an axis reads."""
    index: Any = _Index(layout, length)
    for start, stop in zip(axis.cuts[:-1].tolist(), axis.cuts[1:].tolist(), strict=True):
        parts = axis.parts(index, start, stop)
        rows = [layout.row_start[p.sample] + np.arange(p.rows.start, p.rows.stop) for p in parts]
        yield set(np.unique(np.concatenate([[], *rows]) // layout.geometry.shard_rows).tolist())


@given(_stores(), st.integers(1, 40))
@settings(deadline=None)
def test_the_rows_of_complete_samples_follow_each_other_and_no_chunk_reads_two_shards(
    given_store: tuple[Layout, Any, Any], most: int
) -> None:
    layout, length, complete = given_store
    axis = complete_axis(layout, length, complete, most)
    index: Any = _Index(layout, length)
    samples = np.flatnonzero(complete).tolist()
    expected = [(sample, row) for sample in samples for row in range(length[sample])]

    found = [
        (part.sample, row)
        for part in axis.parts(index, 0, int(axis.cuts[-1]))
        for row in range(part.rows.start, part.rows.stop)
    ]

    assert found == expected
    assert all(len(shards) == 1 for shards in _shards(layout, axis, length))
    assert all(0 < rows <= max(most, CHUNK_ROWS) for rows in axis.chunks)


@given(_stores(), st.integers(1, 40))
@settings(deadline=None)
def test_no_chunk_of_a_store_is_decoded_for_two_chunks_of_a_view(
    given_store: tuple[Layout, Any, Any], most: int
) -> None:
    layout, length, complete = given_store
    axis = complete_axis(layout, length, complete, most)
    index: Any = _Index(layout, length)
    seen: set[tuple[int, int]] = set()
    for start, stop in zip(axis.cuts[:-1].tolist(), axis.cuts[1:].tolist(), strict=True):
        here = {
            (place.shard, place.chunk)
            for part in axis.parts(index, start, stop)
            for place in chunks_at(
                layout.geometry, int(layout.row_start[part.sample]), int(length[part.sample])
            )
            if place.rows.start < part.rows.stop and part.rows.start < place.rows.stop
        }
        assert not seen & here
        seen |= here


@given(_stores())
@settings(deadline=None)
def test_with_padding_a_row_lies_where_it_lies_in_the_store_and_a_chunk_is_a_shard(
    given_store: tuple[Layout, Any, Any],
) -> None:
    layout, length, complete = given_store
    axis = store_axis(layout, length, complete)
    index: Any = _Index(layout, length)
    expected = {
        (int(i), t): int(layout.row_start[i]) + t
        for i in np.flatnonzero(complete)
        for t in range(length[i])
    }

    found: dict[tuple[int, int], int] = {}
    for start, stop in zip(axis.cuts[:-1].tolist(), axis.cuts[1:].tolist(), strict=True):
        for part in axis.parts(index, start, stop):
            rows = range(part.rows.start, part.rows.stop)
            places = range(start + part.target.start, start + part.target.stop)
            found |= {(part.sample, t): row for t, row in zip(rows, places, strict=True)}

    assert found == expected
    assert axis.chunks == (layout.geometry.shard_rows,) * layout.shards


@given(_stores(), st.integers(1, 40), st.booleans(), st.data())
@settings(deadline=None)
def test_any_range_of_rows_is_a_part_of_all_rows(
    given_store: tuple[Layout, Any, Any], most: int, padding: Any, data: st.DataObject
) -> None:
    layout, length, complete = given_store
    axis = (
        store_axis(layout, length, complete)
        if padding
        else complete_axis(layout, length, complete, most)
    )
    rows = int(axis.cuts[-1])
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))

    whole, part = _paint(axis, layout, length, 0, rows), _paint(axis, layout, length, start, stop)

    np.testing.assert_array_equal(part, whole[start:stop])


def _paint(axis: RowAxis, layout: Layout, length: Any, start: int, stop: int) -> Any:
    index: Any = _Index(layout, length)
    painted = np.full((stop - start, 2), -1)
    for part in axis.parts(index, start, stop):
        painted[part.target, 0] = part.sample
        painted[part.target, 1] = np.arange(part.rows.start, part.rows.stop)
    return painted


@given(st.lists(st.booleans(), min_size=1))
def test_a_snapshot_says_what_was_complete(complete: list[bool]) -> None:
    snapshot = Snapshot.of(np.array(complete))

    assert [sample in snapshot for sample in range(len(complete))] == complete

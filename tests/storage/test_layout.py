"""The layout, against a dumb reference and against what DESIGN promises of the defaults."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hsstore.errors import InputError
from hsstore.layout import Geometry, Layout, choose_geometry, plan_layout

GIB = 1 << 30

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=60)
geometries = st.builds(
    lambda slots, per_chunk, rows, chunks, span: Geometry(
        slots=slots * per_chunk,
        hidden=8,
        itemsize=2,
        chunk_rows=rows,
        chunk_slots=per_chunk,
        shard_rows=rows * chunks,
        span_samples=span,
    ),
    slots=st.integers(1, 3),
    per_chunk=st.integers(1, 2),
    rows=st.integers(1, 9),
    chunks=st.integers(1, 6),
    span=st.integers(1, 70),
)


def reference(length: list[int], sizes: Geometry) -> tuple[list[int], list[list[int]], list[int]]:
    """Lay samples out one by one: row starts, the samples of each block, its shard count."""
    row_start: list[int] = []
    blocks: list[list[int]] = []
    shards: list[int] = []
    free_rows = 0
    for sample, tokens in enumerate(length):
        rows = -(-tokens // sizes.chunk_rows) * sizes.chunk_rows
        if rows > free_rows or sample % sizes.span_samples == 0:
            blocks.append([])
            shards.append(-(-rows // sizes.shard_rows))
            # A sample longer than a shard leaves nothing for the next one.
            free_rows = max(sizes.shard_rows, rows)
        end = sum(shards) * sizes.shard_rows
        row_start.append(
            end - free_rows if shards[-1] == 1 else end - shards[-1] * sizes.shard_rows
        )
        free_rows -= rows
        blocks[-1].append(sample)
    return row_start, blocks, shards


def blocks_of(layout: Layout) -> list[list[int]]:
    return [list(layout.block(index).samples) for index in range(layout.blocks)]


@given(lengths, geometries)
def test_the_layout_is_that_of_a_greedy_cut_sample_by_sample(
    length: list[int], sizes: Geometry
) -> None:
    row_start, blocks, shards = reference(length, sizes)

    layout = plan_layout(np.array(length), sizes)

    assert layout.row_start.tolist() == row_start
    assert blocks_of(layout) == blocks
    assert np.diff(layout.block_shard).tolist() == shards
    assert layout.rows == sum(shards) * sizes.shard_rows


@given(lengths, geometries)
def test_every_chunk_belongs_to_one_sample_and_every_shard_to_one_block(
    length: list[int], sizes: Geometry
) -> None:
    layout = plan_layout(np.array(length), sizes)

    owners: dict[tuple[int, int], int] = {}
    for sample, tokens in enumerate(length):
        block = layout.block(layout.block_of(sample))
        assert sample in block.samples
        for place in layout.chunks_of(sample, tokens):
            assert place.shard in block.shards
            assert 0 <= place.chunk < sizes.shard_chunks
            assert owners.setdefault((place.shard, place.chunk), sample) == sample


@given(lengths, geometries)
def test_the_chunks_of_a_sample_cover_each_of_its_values_once(
    length: list[int], sizes: Geometry
) -> None:
    layout = plan_layout(np.array(length), sizes)

    for sample, tokens in enumerate(length):
        covered = np.zeros((tokens, sizes.slots), int)
        for place in layout.chunks_of(sample, tokens):
            covered[place.rows, place.slots] += 1
            row_chunk, slot_chunk = divmod(place.chunk, sizes.slot_chunks)
            row = place.shard * sizes.shard_rows + row_chunk * sizes.chunk_rows
            assert row == layout.row_start[sample] + place.rows.start
            assert slot_chunk * sizes.chunk_slots == place.slots.start
        assert (covered == 1).all()


@given(lengths, geometries)
def test_samples_start_on_chunks_and_blocks_stay_inside_spans(
    length: list[int], sizes: Geometry
) -> None:
    layout = plan_layout(np.array(length), sizes)

    assert (layout.row_start % sizes.chunk_rows == 0).all()
    for index in range(layout.blocks):
        block = layout.block(index)
        span = layout.span_slice(block.span)
        assert span.start <= block.samples.start < block.samples.stop <= span.stop
    assert layout.span_slice(layout.spans - 1).stop == len(length)


@given(lengths, geometries)
def test_a_sample_longer_than_a_shard_is_alone_in_whole_shards(
    length: list[int], sizes: Geometry
) -> None:
    layout = plan_layout(np.array(length), sizes)

    for index in range(layout.blocks):
        block = layout.block(index)
        if len(block.shards) > 1:
            assert len(block.samples) == 1
            assert length[block.samples.start] > sizes.shard_rows
            assert layout.row_start[block.samples.start] == block.shards.start * sizes.shard_rows


@given(lengths, geometries, st.sampled_from([np.int32, np.int64, np.uint32]))
def test_the_layout_depends_on_nothing_but_lengths_and_sizes(
    length: list[int], sizes: Geometry, dtype: type[np.signedinteger | np.unsignedinteger]
) -> None:
    layout = plan_layout(np.array(length, dtype=np.int64), sizes)

    again = plan_layout(np.array(length, dtype=dtype), sizes)

    np.testing.assert_array_equal(again.row_start, layout.row_start)
    np.testing.assert_array_equal(again.block_sample, layout.block_sample)
    np.testing.assert_array_equal(again.block_shard, layout.block_shard)
    assert again.row_start.dtype == again.block_shard.dtype == np.int64


def test_samples_of_one_token_take_a_chunk_each() -> None:
    sizes = Geometry(4, 64, 2, chunk_rows=8, chunk_slots=4, shard_rows=32, span_samples=100)

    layout = plan_layout(np.ones(10, np.int64), sizes)

    assert layout.row_start.tolist() == [8 * sample for sample in range(10)]
    assert blocks_of(layout) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_samples_of_a_million_tokens_have_exact_rows_beyond_32_bits() -> None:
    length = np.full(5000, 1_000_001, np.int32)
    sizes = choose_geometry(length, slots=4, hidden=7168, itemsize=2)

    layout = plan_layout(length, sizes)

    shards = -(-1_000_001 // sizes.shard_rows)
    expected = [sample * shards * sizes.shard_rows for sample in range(5000)]
    assert layout.row_start.tolist() == expected
    assert expected[-1] > 2**32
    last = list(layout.chunks_of(4999, 1_000_001))[-1]
    assert (last.rows.stop, last.slots) == (1_000_001, slice(3, 4))


@pytest.mark.parametrize(
    ("hidden", "slots", "chunk_slots"), [(576, 4, 4), (2048, 4, 1), (7168, 4, 1), (7168, 61, 1)]
)
def test_default_chunks_are_of_the_size_that_reads_and_compresses_best(
    hidden: int, slots: int, chunk_slots: int
) -> None:
    sizes = choose_geometry(np.array([100]), slots=slots, hidden=hidden, itemsize=2)

    chunk_bytes = np.prod(sizes.chunk_shape) * sizes.itemsize

    assert sizes.chunk_slots == chunk_slots
    assert 1.8e6 <= chunk_bytes <= 3.7e6


@given(
    hidden=st.sampled_from([384, 576, 2048, 4096, 7168]),
    slots=st.integers(1, 8),
    itemsize=st.sampled_from([2, 4]),
    tokens=st.integers(1, 30_000),
    samples=st.integers(1, 50_000),
)
def test_default_sizes_stay_within_their_bounds(
    hidden: int, slots: int, itemsize: int, tokens: int, samples: int
) -> None:
    length = np.full(samples, tokens)

    sizes = choose_geometry(length, slots=slots, hidden=hidden, itemsize=itemsize)
    layout = plan_layout(length, sizes)

    shard_bytes = sizes.shard_rows * sizes.row_bytes
    assert 32 << 20 <= shard_bytes <= GIB
    assert layout.spans <= 256
    assert np.prod(sizes.chunk_shape) * itemsize < 2**31
    assert sizes.slots % sizes.chunk_slots == 0
    assert sizes.shard_rows % sizes.chunk_rows == 0


@pytest.mark.parametrize("total_gib", [4, 16, 50])
def test_a_store_of_some_gigabytes_has_about_64_shards(total_gib: int) -> None:
    length = np.full(total_gib * GIB // (500 * 57_344), 500)

    layout = plan_layout(length, choose_geometry(length, slots=4, hidden=7168, itemsize=2))

    assert 60 <= layout.shards <= 100


def test_the_5_tb_case_has_about_5500_shards_in_256_spans() -> None:
    length = np.random.default_rng(0).integers(1, 4707, 37_312)

    layout = plan_layout(length, choose_geometry(length, slots=4, hidden=7168, itemsize=2))

    assert 5000 < layout.shards < 6000
    assert layout.spans == 256


def test_ten_million_samples_are_planned_by_numpy_passes_alone() -> None:
    length = np.random.default_rng(0).integers(1, 6000, 10_000_000, dtype=np.int32)
    sizes = choose_geometry(length, slots=4, hidden=7168, itemsize=2)

    tracemalloc.start()
    layout = plan_layout(length, sizes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # The result, and the passes over a part of the samples at a time.
    assert peak < 24 * len(length)
    chunks = -(-length.astype(np.int64) // sizes.chunk_rows)
    assert (np.diff(layout.row_start) >= chunks[:-1] * sizes.chunk_rows).all()
    assert layout.row_start[-1] < layout.rows


def test_spans_partition_the_samples() -> None:
    layout = plan_layout(
        np.ones(100, np.int64), Geometry(1, 8, 2, 1, 1, shard_rows=7, span_samples=30)
    )

    spans = [layout.span_slice(span) for span in range(layout.spans)]

    assert spans[0].start == 0
    assert spans[-1].stop == 100
    assert all(left.stop == right.start for left, right in pairwise(spans))


@pytest.mark.parametrize("length", [[], [3, 0, 2], [-1]])
def test_no_sample_or_an_empty_one_is_refused(length: list[int]) -> None:
    with pytest.raises(InputError, match="at least one token"):
        choose_geometry(np.array(length, np.int64), slots=4, hidden=64, itemsize=2)


@pytest.mark.parametrize("name", ["chunk_rows", "shard_rows", "span_samples"])
@pytest.mark.parametrize("size", [0, -3])
def test_a_size_of_nothing_is_refused_by_name(name: str, size: int) -> None:
    with pytest.raises(InputError, match=f"{name} is {size}: at least 1 is needed"):
        choose_geometry(np.array([5]), slots=4, hidden=64, itemsize=2, **{name: size})


def test_chunks_that_the_codec_cannot_take_are_refused_with_their_bytes() -> None:
    with pytest.raises(InputError, match="2,147,483,648 bytes"):
        choose_geometry(np.array([5]), slots=4, hidden=4096, itemsize=2, chunk_rows=1 << 18)


def test_a_chosen_shard_size_is_rounded_up_to_whole_chunks() -> None:
    sizes = choose_geometry(
        np.array([5]), slots=4, hidden=64, itemsize=2, chunk_rows=8, shard_rows=20
    )

    assert sizes.shard_rows == 24

"""Which bytes are read for some chunks, wherever they lie in their shard."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hsstore.create import LayoutOptions
from hsstore.errors import CorruptStoreError
from hsstore.shard import shard_path
from hsstore.shard.ranges import plan_reads
from hsstore.shard.reader import ShardReader
from hsstore.shard.writer import ShardWriter
from hsstore.testing.stores import commit_block, make_model, make_store, payload

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.store import Store

ONE_BLOCK = LayoutOptions(chunk_rows=4, shard_rows=64, span_samples=9)
LENGTHS = [9, 3, 16, 4, 11]
ENTRIES = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=12)
many = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@given(ENTRIES, st.integers(1, 200), st.integers(0, 30))
def test_every_chunk_is_in_one_read_at_its_place_and_no_read_is_larger_than_it_must_be(
    entries: list[tuple[int, int]], most: int, gap: int
) -> None:
    reads = plan_reads(np.array(entries, "<u8").reshape(-1, 2), most_bytes=most, gap_bytes=gap)

    found = {
        part.wanted: (read.offset + part.start, part.nbytes)
        for read in reads
        for part in read.parts
    }
    assert [found[number] for number in range(len(entries))] == entries
    assert sum(len(read.parts) for read in reads) == len(entries)
    for read in reads:
        ends = [part.start + part.nbytes for part in read.parts]
        assert (read.parts[0].start, max(ends)) == (0, read.nbytes)
        assert len(read.parts) == 1 or read.nbytes <= most
        starts = [part.start for part in read.parts]
        furthest = itertools.accumulate(ends, max)
        assert all(start <= end + gap for end, start in zip(furthest, starts[1:], strict=False))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=9), st.integers(0, 1000))
def test_chunks_side_by_side_are_one_read_in_any_order(sizes: list[int], start: int) -> None:
    ends = start + np.cumsum(sizes)
    entries = np.stack([ends - sizes, sizes], axis=1).astype("<u8")

    reads = plan_reads(entries[::-1], most_bytes=sum(sizes), gap_bytes=0)

    assert [(read.offset, read.nbytes) for read in reads] == [(start, sum(sizes))]


@pytest.fixture(params=[16, 2048])
def store(request: pytest.FixtureRequest, directory: Path) -> Store:
    """Give an empty store of one block; its chunks hold all slots, or one."""
    model = make_model(hidden=request.param)
    return make_store(directory / "s.zarr", LENGTHS, model=model, options=ONE_BLOCK)


@many
@given(
    order=st.permutations(range(len(LENGTHS))),
    cuts=st.sets(st.integers(1, len(LENGTHS) - 1), max_size=2),
)
def test_a_sample_is_one_range_whatever_was_written_copied_and_in_which_order(
    store: Store, order: list[int], cuts: set[int]
) -> None:
    store.withdraw(np.arange(len(LENGTHS)))
    edges = [0, *sorted(cuts), len(order)]

    for low, high in itertools.pairwise(edges):
        commit_block(store, 0, order[low:high], run=f"run{low}")

        shard = ShardReader(shard_path(store.path, 0), store.layout.geometry.shard_chunks)
        for sample in order[:high]:
            chunks = [place.chunk for place in store.layout.chunks_of(sample, LENGTHS[sample])]
            reads = plan_reads(shard.index[chunks], most_bytes=1 << 40, gap_bytes=0)
            assert len(reads) == 1, f"sample {sample}"


@many
@given(data=st.data())
def test_a_sample_whose_chunks_lie_apart_and_in_disorder_is_read_all_the_same(
    store: Store, data: st.DataObject
) -> None:
    encoded = {
        place.chunk: store.codec.encode(payload(store, sample)[place.rows, place.slots])
        for sample, length in enumerate(LENGTHS)
        for place in store.layout.chunks_of(sample, length)
    }
    holes = data.draw(st.sets(st.sampled_from(sorted(encoded))))
    writer = ShardWriter(shard_path(store.path, 0), "run", store.layout.geometry.shard_chunks)
    for chunk in data.draw(st.permutations(sorted(encoded))):
        if chunk in holes:
            writer.append(chunk, b"an older one" * 3000)
        writer.append(chunk, encoded[chunk])
    writer.seal()
    writer.publish()

    for sample in range(len(LENGTHS)):
        rows = slice(data.draw(st.integers(0, 3)), None)
        expected = payload(store, sample)[rows]
        np.testing.assert_array_equal(store.payload.read(sample, rows=rows), expected)
        slots = data.draw(st.lists(st.integers(0, 2), max_size=4))
        part = store.payload.read(sample, rows=rows, slots=slots)
        np.testing.assert_array_equal(part, expected[:, slots])


def test_a_chunk_larger_than_any_can_be_is_corrupt_and_no_memory_is_taken_for_it(
    store: Store,
) -> None:
    writer = ShardWriter(shard_path(store.path, 0), "run", store.layout.geometry.shard_chunks)
    for place in store.layout.chunks_of(0, LENGTHS[0]):
        writer.append(place.chunk, bytes(store.codec.max_bytes + 1))
    writer.seal()
    writer.publish()

    with pytest.raises(CorruptStoreError, match=r"sample 0: .* more than any can"):
        store.payload.read(0)

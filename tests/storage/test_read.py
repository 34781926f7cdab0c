"""Parts of samples, memory of the caller's, and memory that is used again."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hsstore.buffers import KEPT_BUFFERS, KEPT_BYTES, SMALL_BYTES, BufferPool
from hsstore.codec import CODEC_NAMES, CodecName
from hsstore.create import LayoutOptions
from hsstore.decoders import run_all
from hsstore.dtype import native_dtype
from hsstore.errors import CorruptStoreError, NotExtractedError
from hsstore.shard import shard_path
from hsstore.testing.stores import commit_block, fill_store, make_model, make_store, payload

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.store import Store

    Bits = npt.NDArray[Any]

LENGTHS = [3, 9, 40, 1, 16, 5]


@pytest.fixture(params=[(16, "fast"), (2048, "fast"), (2048, "max"), (16, "none")])
def store(request: pytest.FixtureRequest, directory: Path) -> Store:
    """Give a full store: all slots a chunk, or one; sample 2 takes three shards."""
    hidden, codec = request.param
    options = LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=6, codec=codec)
    made = make_store(
        directory / "s.zarr", LENGTHS, model=make_model(hidden=hidden), options=options
    )
    fill_store(made)
    return made


BOUND = st.none() | st.integers(-45, 45)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    sample=st.integers(0, len(LENGTHS) - 1),
    rows=st.builds(slice, BOUND, BOUND),
    slots=st.none() | st.lists(st.integers(0, 2), max_size=5),
)
def test_any_rows_and_slots_are_those_of_the_whole_sample(
    store: Store, sample: int, rows: slice, slots: list[int] | None
) -> None:
    expected = payload(store, sample)[rows]
    if slots is not None:
        expected = expected[:, slots]
    wide = np.full((len(expected), expected.shape[1], 2 * expected.shape[2]), 0xEEEE, store.bits)
    out = wide[:, :, ::2]

    new = store.payload.read(sample, rows=rows, slots=slots)
    given_back = store.payload.read(sample, rows=rows, slots=slots, out=out)

    assert given_back is out
    np.testing.assert_array_equal(new, expected)
    np.testing.assert_array_equal(out, expected)
    assert (wide[:, :, 1::2] == 0xEEEE).all()


def test_states_come_in_the_dtype_of_the_store_and_of_complete_samples_alone(
    directory: Path,
) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    commit_block(store, 0, [1])
    out = np.zeros((4, 2, 16), native_dtype("bfloat16"))

    states = store.states(1, rows=slice(-4, None), slots=[2, 0], out=out)

    expected = payload(store, 1)[-4:, [2, 0]]
    assert states.dtype == out.dtype
    np.testing.assert_array_equal(out.view(np.uint16), expected)
    assert np.shares_memory(states, out)
    with pytest.raises(NotExtractedError, match="sample 0"):
        store.states(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"out": np.empty((9, 3, 15), np.uint16)}, r"needed is uint16 \(9, 3, 16\)"),
        ({"out": np.empty((9, 3, 16), np.uint32)}, r"out is uint32"),
        ({"rows": slice(0, 9, 2)}, "steps of 1"),
        ({"slots": [3]}, "slots 0 to 2"),
        ({"slots": [-1]}, "slots 0 to 2"),
    ],
)
def test_what_cannot_be_read_is_said(
    directory: Path, arguments: dict[str, Any], message: str
) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    fill_store(store)

    with pytest.raises((ValueError, IndexError), match=message):
        store.payload.read(1, **arguments)


def test_only_the_chunks_of_a_part_are_read(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS, model=make_model(hidden=2048))
    fill_store(store)
    shard_path(store.path, 2).unlink()  # rows 16 to 31 of sample 2
    before, behind = slice(0, 16), slice(32, 40)

    np.testing.assert_array_equal(store.payload.read(2, rows=before), payload(store, 2)[before])
    np.testing.assert_array_equal(store.payload.read(2, rows=behind), payload(store, 2)[behind])
    with pytest.raises(CorruptStoreError, match=r"sample 2: c\.2\.0\.0: shard is missing"):
        store.payload.read(2, rows=slice(15, 17))


def test_a_sample_of_more_reads_than_the_kernel_is_told_of_at_once_is_whole(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(directory / "s.zarr", LENGTHS, model=make_model(hidden=2048))
    fill_store(store)
    monkeypatch.setattr("hsstore.shard.reader.ShardReader.READ_BYTES", 1)
    monkeypatch.setattr("hsstore.reader.EXPECTED_READS", 4)

    np.testing.assert_array_equal(store.payload.read(2), payload(store, 2))


def test_where_a_chunk_holds_one_slot_the_rows_of_a_slot_lie_side_by_side(
    directory: Path,
) -> None:
    store = make_store(directory / "s.zarr", LENGTHS, model=make_model(hidden=2048))
    fill_store(store)

    states = store.payload.read(4, slots=[2, 0])

    np.testing.assert_array_equal(states, payload(store, 4)[:, [2, 0]])
    assert all(states[:, slot].flags.c_contiguous for slot in range(2))


def test_a_few_rows_do_not_keep_the_memory_of_a_whole_chunk(directory: Path) -> None:
    options = LayoutOptions(chunk_rows=512, shard_rows=512, span_samples=6)
    store = make_store(directory / "s.zarr", [500], model=make_model(hidden=2048), options=options)
    fill_store(store)

    few = store.payload.read(0, rows=slice(7, 9))

    np.testing.assert_array_equal(few, payload(store, 0)[7:9])
    assert owned_bytes(few) == few.nbytes


def owned_bytes(array: Bits) -> int:
    """Return the size of the memory that an array keeps."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_many_threads_read_at_once(directory: Path, codec: CodecName) -> None:
    options = LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=6, codec=codec)
    store = make_store(directory / "s.zarr", LENGTHS, options=options)
    fill_store(store)
    samples = list(range(len(LENGTHS))) * 10

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(store.payload.read, samples))

    for sample, bits in zip(samples, results, strict=True):
        np.testing.assert_array_equal(bits, payload(store, sample))


def test_a_process_that_was_forked_after_reading_reads_too(store: Store) -> None:
    np.testing.assert_array_equal(store.payload.read(2), payload(store, 2))

    child = os.fork()
    if not child:
        same = np.array_equal(store.payload.read(2), payload(store, 2))
        os._exit(0 if same else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_every_task_has_ended_when_the_first_error_is_raised() -> None:
    done: list[int] = []

    def fail() -> None:
        raise CorruptStoreError("first")

    with pytest.raises(CorruptStoreError, match="first"):
        run_all([fail, *(lambda: done.append(1) for _ in range(50))])

    assert len(done) == 50


def test_memory_comes_back_when_the_array_and_all_its_views_are_gone() -> None:
    pool = BufferPool()
    array = pool.empty((SMALL_BYTES,), np.dtype(np.uint16))
    address = array.ctypes.data
    view = array[5:].reshape(-1, 1).view(np.int16)[1:]

    del array
    gc.collect()
    while_in_use = pool.empty((SMALL_BYTES,), np.dtype(np.uint16))
    assert while_in_use.ctypes.data != address
    assert pool.kept_bytes == 0
    del view
    gc.collect()

    assert pool.kept_bytes == 2 * SMALL_BYTES
    assert pool.empty((SMALL_BYTES - 7,), np.dtype(np.uint16)).ctypes.data == address


def test_kept_memory_is_bounded() -> None:
    pool = BufferPool()
    arrays = [pool.empty((SMALL_BYTES,), np.dtype(np.uint8)) for _ in range(3 * KEPT_BUFFERS)]

    arrays.clear()
    large = pool.empty((KEPT_BYTES + 1,), np.dtype(np.uint8))
    kept = pool.kept_bytes
    del large

    assert kept == KEPT_BUFFERS * SMALL_BYTES
    assert pool.kept_bytes <= KEPT_BYTES

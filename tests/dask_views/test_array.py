"""The array of a store holds the tokens of complete samples, and nothing else."""

from __future__ import annotations

import shutil
import tracemalloc
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.base import compute
from hypothesis import given, settings, strategies as st

from hsstore.create import LayoutOptions
from hsstore.errors import InputError, NotExtractedError
from hsstore.store import Store
from hsstore.testing.finite import MIXED_COMPLETE, MIXED_PENDING, commit_states, finite_states
from hsstore.testing.stores import fill_store, make_model, make_store

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

COLUMNS: tuple[Any, ...] = ("input_ids", "loss_mask", "sample", "position")
KEYS = st.one_of(
    st.integers(-3, 2),
    st.builds(
        slice, *[st.none() | st.integers(-60, 60)] * 2, st.none() | st.sampled_from([1, 2, -1, -3])
    ),
)


def all_states(store: Store) -> npt.NDArray[np.float32]:
    return np.concatenate([store[i].hidden_states.astype(np.float32) for i in MIXED_COMPLETE])


def test_it_is_the_states_of_the_complete_samples_in_order(mixed: Store) -> None:
    array = mixed.to_dask_array()

    assert array.dtype == np.float32
    np.testing.assert_array_equal(array.compute(), all_states(mixed))


def test_all_columns_are_cut_alike_and_belong_together(mixed: Store) -> None:
    states = mixed.to_dask_array()
    columns = {name: mixed.to_dask_array(name) for name in COLUMNS}

    values: dict[str, Any] = dict(zip(columns, compute(*columns.values()), strict=True))

    assert {array.chunks[0] for array in columns.values()} == {states.chunks[0]}
    for sample in MIXED_COMPLETE:
        here = values["sample"] == sample
        np.testing.assert_array_equal(values["input_ids"][here], mixed.input_ids(sample))
        np.testing.assert_array_equal(values["loss_mask"][here], mixed.loss_mask(sample))
        assert values["position"][here].tolist() == list(range(mixed.length[sample]))


def test_a_mean_is_one_over_tokens_and_not_over_what_is_pending_failed_or_padding(
    mixed: Store,
) -> None:
    mean = mixed.to_dask_array().mean(axis=0).compute()

    np.testing.assert_allclose(mean, all_states(mixed).mean(axis=0), rtol=1e-5, atol=1e-6)
    assert np.isnan(mixed.to_dask_array(padding=True).mean(axis=0).compute()).all()


def test_with_padding_rows_lie_as_in_the_store_and_there_is_nothing_else(mixed: Store) -> None:
    states, sample, mask, ids = compute(
        mixed.to_dask_array(padding=True),
        *[mixed.to_dask_array(COLUMNS[at], padding=True) for at in (2, 1, 0)],
    )

    expected = np.full_like(states, np.nan)
    for i in MIXED_COMPLETE:
        rows = slice(mixed.layout.row_start[i], mixed.layout.row_start[i] + mixed.length[i])
        expected[rows] = mixed[i].hidden_states
        assert set(sample[rows]) == {i}
    np.testing.assert_array_equal(states, expected)
    empty = np.isnan(expected).all(axis=(1, 2))
    assert set(sample[empty]) == {-1}
    assert not mask[empty].any()
    assert not ids[empty].any()


@pytest.fixture(scope="module")
def both(mixed: Store) -> tuple[da.Array, da.Array]:
    """Give the view, and an array of Dask's own with the same contents."""
    view = mixed.to_dask_array()
    return view, da.from_array(all_states(mixed), chunks=view.chunks)


@given(key=st.tuples(KEYS, KEYS, KEYS))
@settings(max_examples=40, deadline=None)
def test_any_slice_is_that_of_the_whole(both: tuple[da.Array, da.Array], key: Any) -> None:
    found, expected = (array[key].compute(scheduler="synchronous") for array in both)

    np.testing.assert_array_equal(found, expected, strict=True)


def test_slots_are_read_in_the_order_that_is_asked_for_and_in_the_stores_type(
    mixed: Store,
) -> None:
    array = mixed.to_dask_array(slots=[2, 0], dtype=None)
    found = array.compute()

    assert str(array.dtype) == str(found.dtype) == "bfloat16"
    np.testing.assert_array_equal(found.astype(np.float32), all_states(mixed)[:, [2, 0]])


def test_one_slot_is_read_without_the_others_where_a_chunk_holds_one(directory: Path) -> None:
    store = make_store(directory / "wide.zarr", [5, 9], model=make_model(hidden=2048))
    fill_store(store)
    shard = store.path / "hidden_states" / "c.0.0.0"
    content = bytearray(shard.read_bytes())
    view = store.to_dask_array(dtype=None)
    place = next(p for p in store.layout.chunks_of(0, 5) if p.slots.start == 1)
    index = np.frombuffer(content[-16 * store.layout.geometry.shard_chunks - 4 : -4], "<u8")
    content[int(index[2 * place.chunk]) + 40] ^= 0xFF
    shard.write_bytes(content)

    expected = store.states(0, slots=[0]).view(np.uint16)

    np.testing.assert_array_equal(view[:5, 0].compute().view(np.uint16), expected[:, 0])
    with pytest.raises(Exception, match="crc32c"):
        view[:5, 1].compute()


def test_chunks_have_the_size_that_dask_is_configured_for(mixed: Store) -> None:
    row_bytes = 3 * 16 * 4
    with dask.config.set({"array.chunk-size": 8 * row_bytes}):
        assert max(mixed.to_dask_array().chunks[0]) <= 8
    assert max(mixed.to_dask_array().chunks[0]) == mixed.layout.geometry.shard_rows


@pytest.mark.parametrize("column", ["hidden_states", *COLUMNS])
@pytest.mark.parametrize("padding", [False, True])
def test_a_store_without_a_complete_sample_is_an_array_without_tokens(
    directory: Path, column: Any, padding: Any
) -> None:
    store = make_store(directory / "empty.zarr", [3, 5])

    found = store.to_dask_array(column, padding=padding).compute()

    assert len(found) == (store.layout.rows if padding else 0)
    if column == "hidden_states":
        assert found.shape[1:] == (3, 16)
        assert np.isnan(found).all()


def test_it_is_what_was_complete_when_it_was_made(mixed: Store, directory: Path) -> None:
    store = Store.open(shutil.copytree(mixed.path, directory / "store.zarr"))
    before = store.to_dask_array()
    sample = MIXED_PENDING[-1]
    block = store.layout.block(store.layout.block_of(sample)).samples
    states = {i: finite_states(store, i) for i in block if i in {*MIXED_COMPLETE, sample}}

    commit_states(store, states)

    np.testing.assert_array_equal(before.compute(), all_states(mixed))
    assert len(store.to_dask_array()) == len(before) + int(store.length[sample])


def test_a_sample_that_was_taken_back_is_not_read_any_more(mixed: Store, directory: Path) -> None:
    store = Store.open(shutil.copytree(mixed.path, directory / "store.zarr"))
    array = store.to_dask_array()

    store.withdraw(np.array([MIXED_COMPLETE[0]]))

    with pytest.raises(NotExtractedError, match="sample 0"):
        array.compute()


def test_a_store_that_is_gone_or_was_replaced_is_told(mixed: Store, directory: Path) -> None:
    store = Store.open(shutil.copytree(mixed.path, directory / "store.zarr"))
    array = store.to_dask_array()
    array.compute()
    shutil.rmtree(store.path)
    with pytest.raises(InputError, match="every Dask worker must see the store"):
        array.compute()

    make_store(store.path, [3, 4])

    with pytest.raises(InputError, match="another store lies there"):
        array.compute()


def test_tasks_cannot_change_what_other_tasks_are_given(mixed: Store) -> None:
    def spoil(chunk: Any) -> Any:
        chunk[:] = 0
        return chunk

    spoilt = da.map_blocks(spoil, mixed.to_dask_array(), dtype=np.float32, meta=np.empty((0, 0, 0)))
    with pytest.raises(ValueError, match="read-only"):
        spoilt.compute()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"column": "digest"}, ValueError, "not one of hidden_states, input_ids"),
        ({"dtype": np.float16}, ValueError, "only float32, float64 or the store's own, bfloat16"),
        ({"slots": [3]}, IndexError, "the store has slots 0 to 2"),
    ],
)
def test_what_does_not_exist_is_refused(
    mixed: Store, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mixed.to_dask_array(**options).compute()


def test_a_task_needs_the_memory_of_its_chunk_and_little_more(directory: Path) -> None:
    options = LayoutOptions(chunk_rows=64, shard_rows=4096)
    model = make_model(hidden=512)
    store = make_store(directory / "long.zarr", [4000], model=model, options=options)
    commit_states(store, {0: finite_states(store, 0)})
    array = store.to_dask_array()
    array[:1].compute(scheduler="synchronous")

    tracemalloc.start()
    try:
        array.sum().compute(scheduler="synchronous")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert array.npartitions == 1
    assert peak < 1.2 * array.nbytes

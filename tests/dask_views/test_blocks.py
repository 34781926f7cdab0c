"""The blocks of a store as Dask tasks, and its samples as a data frame."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from dask.base import compute
from dask.delayed import delayed

from hsstore.create import LayoutOptions
from hsstore.testing.finite import MIXED_COMPLETE, MIXED_FAILED, MIXED_LENGTHS, MIXED_PENDING
from hsstore.testing.stores import fill_store, make_model, make_store

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.store import Store


def test_each_task_is_the_complete_samples_of_one_block(mixed: Store) -> None:
    blocks = compute(*mixed.to_delayed())

    assert [sample for block in blocks for sample in block.samples] == list(MIXED_COMPLETE)
    for block in blocks:
        assert set(block.samples.tolist()) <= set(mixed.layout.block(block.block).samples)
        assert len(list(block)) == len(block) > 0
        for sample in block:
            assert sample.sample_id == mixed[sample.index].sample_id
            np.testing.assert_array_equal(
                sample.hidden_states, mixed[sample.index].hidden_states, strict=True
            )


def test_a_block_is_small_however_large_its_states(directory: Path) -> None:
    model = make_model(hidden=2048)
    options = LayoutOptions(chunk_rows=16, shard_rows=4096)
    store = make_store(directory / "store.zarr", [100] * 20, model=model, options=options)
    fill_store(store)
    sample_bytes = 100 * store.spec.geometry.row_bytes
    (task,) = store.to_delayed()

    @delayed
    def count(block: Any) -> int:
        return sum(len(sample.input_ids) for sample in block)

    block = task.compute()
    tracemalloc.start()
    try:
        assert count(task).compute(scheduler="synchronous") == 2000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(pickle.dumps(block)) < 2000
    assert len(block) == 20
    assert peak < 8 * sample_bytes


def test_the_data_frame_has_one_row_for_each_complete_sample(mixed: Store) -> None:
    frame = mixed.to_dataframe().compute()

    assert frame.index.tolist() == list(MIXED_COMPLETE)
    assert frame.index.name == "sample"
    assert frame.sample_id.tolist() == [mixed.sample_id(i) for i in MIXED_COMPLETE]
    assert frame.split.tolist() == [mixed.split(i) for i in MIXED_COMPLETE]
    assert frame.tokens.tolist() == [MIXED_LENGTHS[i] for i in MIXED_COMPLETE]
    assert frame.supervised.tolist() == [int(mixed.loss_mask(i).sum()) for i in MIXED_COMPLETE]
    assert frame.block.tolist() == [mixed.layout.block_of(i) for i in MIXED_COMPLETE]
    assert set(frame.status) == {"complete"}
    assert set(frame.failure) == {""}


def test_pending_and_failed_samples_are_in_it_only_if_asked_for_and_are_named(
    mixed: Store,
) -> None:
    frame = mixed.to_dataframe(pending=True).compute()

    assert frame.index.tolist() == list(range(len(mixed)))
    assert frame.index[frame.status == "pending"].tolist() == list(MIXED_PENDING)
    assert frame.index[frame.status == "failed"].tolist() == list(MIXED_FAILED)
    assert frame.failure[MIXED_FAILED[0]] == "bad-data"
    assert frame.supervised.tolist() == [int(mixed.loss_mask(i).sum()) for i in range(len(mixed))]


@pytest.mark.parametrize("pending", [False, True])
def test_a_partition_is_a_span_and_samples_are_found_by_their_number(
    mixed: Store, pending: Any
) -> None:
    frame = mixed.to_dataframe(pending=pending)

    assert frame.npartitions == mixed.layout.spans
    assert frame.loc[5:7].compute().index.tolist() == [5, 6, 7]
    for span in range(mixed.layout.spans):
        where = mixed.layout.span_slice(span)
        assert set(frame.partitions[span].compute().index) <= set(range(where.start, where.stop))


def test_types_are_as_announced_also_where_there_is_no_sample(
    mixed: Store, directory: Path
) -> None:
    for store in (mixed, make_store(directory / "empty.zarr", [3, 5])):
        frame = store.to_dataframe()
        pd.testing.assert_series_equal(frame.compute().dtypes, frame.dtypes)


def test_columns_that_nobody_asks_for_are_not_read(mixed: Store, directory: Path) -> None:
    store = make_store(directory / "store.zarr", [3, 5, 4])
    fill_store(store)
    frame = store.to_dataframe()
    for file in (store.path / "loss_mask").glob("c.*"):
        file.write_bytes(b"damaged")

    assert frame.tokens.sum().compute() == 12
    with pytest.raises(Exception, match="loss_mask"):
        frame.supervised.sum().compute()


def test_opening_a_store_imports_no_dask_and_a_missing_pandas_is_named(mixed: Store) -> None:
    program = f"""
import sys
sys.modules["pandas"] = None
import hsstore
store = hsstore.open({str(mixed.path)!r})
store[0]
print(sorted({{"dask", "distributed"}} & set(sys.modules)))
print(len(store.to_dask_array("sample").compute()))
try:
    store.to_dataframe()
except ImportError as error:
    print(error)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    tokens = sum(MIXED_LENGTHS[i] for i in MIXED_COMPLETE)
    needed = "Store.to_dataframe needs pandas, which is not installed: "
    assert done.stdout.splitlines() == [
        "[]",
        str(tokens),
        f"{needed}pip install 'hsstore[dataframe]'",
    ]

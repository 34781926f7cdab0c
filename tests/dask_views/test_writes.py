"""What is computed from a view is written whole shard by whole shard: no two tasks write one file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from typing_extensions import override
from zarr.storage import LocalStore

from hsstore.testing.finite import MIXED_COMPLETE

if TYPE_CHECKING:
    from pathlib import Path

    from zarr.core.buffer import Buffer

    from hsstore.store import Store


class _CountingStore(LocalStore):
    """Counts how often each file is written: a second time, somebody's rows may be undone."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.written: Counter[str] = Counter()

    @override
    async def set(self, key: str, value: Buffer) -> None:
        self.written[key] += "c/" in key
        await super().set(key, value)

    @override
    def set_sync(self, key: str, value: Buffer) -> None:
        self.written[key] += "c/" in key
        super().set_sync(key, value)


@pytest.fixture
def target(mixed: Store, directory: Path) -> Any:
    """Give an array of the shape of the store's states, with the same shards."""
    states = mixed.to_dask_array(padding=True)
    sizes = mixed.layout.geometry
    return zarr.create_array(
        _CountingStore(directory / "target"),
        shape=states.shape,
        dtype="f4",
        chunks=sizes.chunk_shape,
        shards=(sizes.shard_rows, *states.shape[1:]),
        fill_value=0,
    )


def _most_written(target: Any) -> int:
    written: Counter[str] = target.store.written
    return max(written.values())


def test_an_array_of_the_stores_rows_writes_each_shard_once_without_a_lock(
    mixed: Store, target: Any
) -> None:
    states = mixed.to_dask_array(padding=True) * 2

    with dask.config.set(scheduler="threads", num_workers=8):
        da.store(states, target, lock=False)

    assert _most_written(target) == 1
    np.testing.assert_array_equal(target[:], states.compute())


def test_the_count_sees_a_cut_that_is_not_ours(mixed: Store, target: Any) -> None:
    states = mixed.to_dask_array(padding=True).rechunk({0: 10})

    da.store(states, target, lock=False, scheduler="synchronous")

    assert _most_written(target) > 1


@pytest.mark.parametrize("column", ["hidden_states", "sample"])
def test_a_zarr_array_made_by_dask_has_the_stores_rows(
    mixed: Store, directory: Path, column: Any
) -> None:
    mixed.to_dask_array(column, padding=True).to_zarr(directory / "out.zarr")

    written: Any = zarr.open_array(directory / "out.zarr", mode="r")

    assert written.chunks[0] == mixed.layout.geometry.shard_rows
    for sample in MIXED_COMPLETE:
        start = mixed.layout.row_start[sample]
        rows = written[start : start + mixed.length[sample]]
        expected = mixed[sample].hidden_states if column == "hidden_states" else sample
        np.testing.assert_array_equal(rows, np.broadcast_to(expected, rows.shape))

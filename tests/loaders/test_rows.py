"""Token ids and masks, read without Zarr, are what Zarr reads, or an error."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hsstore.arrays import ROWS_A_CHUNK
from hsstore.errors import CorruptStoreError
from hsstore.rows import RowReader
from hsstore.testing.stores import make_store

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.store import Store

LONG = 2 * ROWS_A_CHUNK + 77


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Give a store whose samples reach over chunks; most rows of the last chunk are padding."""
    return make_store(tmp_path_factory.mktemp("rows") / "store.zarr", [5, LONG, 9])


@given(data=st.data())
def test_any_rows_are_those_that_zarr_reads(long: Store, data: st.DataObject) -> None:
    rows = long.layout.rows
    ends = st.integers(0, rows + 5) | st.sampled_from([ROWS_A_CHUNK, 2 * ROWS_A_CHUNK])
    where = slice(*sorted([data.draw(ends), data.draw(ends)]))

    for name in ("input_ids", "loss_mask"):
        values = RowReader(long.path).read(name, where)
        expected = long.plan_array(name, where)
        assert values.dtype == expected.dtype
        np.testing.assert_array_equal(values, expected)


def test_a_sample_is_read_from_all_its_chunks(long: Store) -> None:
    start = long.index.row_start[1]
    expected = long.plan_array("input_ids", slice(start, start + LONG))

    np.testing.assert_array_equal(long.input_ids(1), expected)
    assert long.input_ids(1).flags.writeable


@pytest.mark.parametrize("damage", ["flipped", "missing", "no metadata"])
def test_damage_is_an_error_and_never_zeros(long: Store, tmp_path: Path, damage: str) -> None:
    copy = shutil.copytree(long.path, tmp_path / "copy.zarr")
    shard = copy / "input_ids" / "c.0"
    if damage == "flipped":
        data = bytearray(shard.read_bytes())
        data[40] ^= 1
        shard.write_bytes(data)
    elif damage == "missing":
        shard.unlink()
    else:
        (copy / "input_ids" / "zarr.json").unlink()

    with pytest.raises(CorruptStoreError, match="array input_ids"):
        RowReader(copy).read("input_ids", slice(0, 5))

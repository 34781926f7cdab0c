"""The same on a `dask.distributed` cluster of two worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import distributed
import numpy as np
import pytest
from dask.delayed import delayed

from hsstore.errors import InputError
from hsstore.testing.finite import MIXED_COMPLETE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hsstore.store import Store


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[distributed.Client]:
    """Give a client of two processes."""
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            memory_limit=0,
            local_directory=str(tmp_path_factory.mktemp("dask")),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_all_views_are_computed_by_other_processes(
    mixed: Store, client: distributed.Client
) -> None:
    @delayed
    def norms(block: Any) -> dict[int, float]:
        return {s.index: float(np.abs(s.hidden_states.astype("f4")).sum()) for s in block}

    frame = client.compute(mixed.to_dataframe()).result()
    arrays = [mixed.to_dask_array(), mixed.to_dask_array(dtype=None)]
    tasks = [mixed.to_dask_array("input_ids"), *[norms(block) for block in mixed.to_delayed()]]
    states, own, ids, *blocks = client.gather(client.compute([*arrays, *tasks]))

    expected = np.concatenate([mixed[i].hidden_states for i in MIXED_COMPLETE])
    np.testing.assert_array_equal(states, expected.astype("f4"))
    np.testing.assert_array_equal(own.view(np.uint16), expected.view(np.uint16))
    np.testing.assert_array_equal(ids, np.concatenate([mixed.input_ids(i) for i in MIXED_COMPLETE]))
    assert frame.index.tolist() == list(MIXED_COMPLETE)
    found = {sample: total for block in blocks for sample, total in block.items()}
    assert found == {
        i: float(np.abs(mixed[i].hidden_states.astype("f4")).sum()) for i in MIXED_COMPLETE
    }


def test_a_store_that_workers_do_not_see_is_told(
    mixed: Store, client: distributed.Client, directory: Path
) -> None:
    moved = directory / "store.zarr"
    moved.symlink_to(mixed.path)
    array = type(mixed).open(moved).to_dask_array()
    moved.unlink()

    with pytest.raises(InputError, match="every Dask worker must see the store under this path"):
        client.compute(array).result()

"""Batches from a Dask cluster are those of the stream."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from distributed import Client, LocalCluster

from hsstore.errors import InputError, NotExtractedError
from hsstore.loaders import Eagle3Stream, dask_batches
from hsstore.testing.stores import commit_block, make_store
from tests.loaders.batches import assert_equal, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hsstore.store import Store

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Give a cluster of two processes."""
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):
        yield client


@pytest.mark.parametrize(
    "options", [{"pack_rows": 60, "seed": 4}, {"batch_size": 5, "dtype": torch.float32}]
)
def test_a_cluster_gives_the_batches_of_the_stream(
    many: Store, client: Client, options: dict[str, Any]
) -> None:
    expected = list(Eagle3Stream(many.path, **options, rank=1, ranks=2))

    batches = list(dask_batches(many, client, **options, rank=1, ranks=2))

    for batch, theirs in zip(batches, expected, strict=True):
        assert_equal(batch, theirs)
        assert batch["aux_states"].numel() == 0 or batch["aux_states"].add_(1) is not None


def test_little_is_asked_for_ahead(many: Store, client: Client) -> None:
    stream = Eagle3Stream(many.path, batch_size=2)

    batches = dask_batches(stream, client, prefetch_bytes=3 * stream.largest_batch_bytes())
    next(batches)

    assert 1 <= len(client.futures) < len(stream) / 2


def test_a_stream_keeps_its_position(many: Store, client: Client) -> None:
    stream, resumed = (Eagle3Stream(many.path, pack_rows=60) for _ in range(2))
    whole = served(list(resumed))
    batches = dask_batches(stream, client)
    seen = served([next(batches), next(batches)])
    resumed.load_state_dict(stream.state_dict())

    assert seen + served(list(dask_batches(resumed, client))) == whole


def test_what_goes_wrong_on_a_worker_is_raised_here(tmp_path: Path, client: Client) -> None:
    store = make_store(tmp_path / "s.zarr", [4, 5])
    commit_block(store, 0, [0, 1])
    stream = Eagle3Stream(store.path, batch_size=1)
    for span in (store.path / "complete").glob("c.*"):
        span.unlink()

    with pytest.raises(NotExtractedError, match="is pending"):
        list(dask_batches(stream, client))


def test_options_beside_a_stream_and_following_are_refused(many: Store, client: Client) -> None:
    stream = Eagle3Stream(many.path, batch_size=1, follow=True)

    with pytest.raises(InputError, match="leave batch_size away"):
        dask_batches(stream, client, batch_size=2)
    with pytest.raises(InputError, match="does not follow"):
        dask_batches(stream, client)

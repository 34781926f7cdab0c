"""The memory of a worker is that of a few chunks: far less than one sample, and than one block."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from hsstore.consolidate import Options, consolidate
from hsstore.create import LayoutOptions
from hsstore.store import Store
from hsstore.tasks import Where
from hsstore.testing.stores import make_model
from tests.consolidate.parts import Named, make_part

if TYPE_CHECKING:
    from pathlib import Path

MODEL = make_model(hidden=1024)
ROW_BYTES = 3 * 1024 * 2
LAYOUT = LayoutOptions(chunk_rows=64, shard_rows=4096, span_samples=100)
WORKERS = 2


@pytest.fixture
def source(directory: Path) -> Path:
    """Make a store with a block of many samples, and a sample longer than a shard."""
    samples = [Named(f"s{number}", length=128) for number in range(32)]
    make_part(
        directory / "a.zarr",
        [*samples, Named("long", length=5000)],
        model=MODEL,
        options=LAYOUT,
    )
    return directory / "a.zarr"


@pytest.mark.parametrize(
    "options",
    [
        Options(codec="max", chunk_rows=128, where=Where(workers=WORKERS), verify=False),
        Options(shard_rows=8192, linking="never", where=Where(workers=WORKERS), verify=False),
    ],
    ids=["encoded", "copied"],
)
def test_memory_is_bounded_by_workers_times_one_sample(
    directory: Path, source: Path, options: Options
) -> None:
    block_bytes, sample_bytes = 32 * 128 * ROW_BYTES, 5000 * ROW_BYTES
    tracemalloc.start()

    report = consolidate([source], directory / "out.zarr", options)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.complete == len(Store.open(source))
    # Stronger than what is promised: both workers together hold less than half of one sample.
    assert peak < sample_bytes / 2 < WORKERS * sample_bytes
    assert peak < block_bytes * 0.6

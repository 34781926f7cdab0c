"""On a real Dask cluster: the result is the same, also when a worker is killed in mid run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from hsstore.consolidate import Options, consolidate
from hsstore.create import LayoutOptions
from hsstore.errors import CorruptStoreError, InputError
from hsstore.store import Store
from hsstore.tasks import Where
from hsstore.testing.stores import make_model
from tests.consolidate.parts import Named, check_holds, look, make_part
from tests.extraction.processes import wait_until
from tests.verify.cluster import PATIENCE_SECONDS, dask_cluster

if TYPE_CHECKING:
    from pathlib import Path

MODEL = make_model(hidden=1024)
SAMPLES = [Named(f"s{number}", length=100) for number in range(40)]
STANDS_STILL = """
import os, signal
from hsstore.shard.writer import ShardWriter

append, calls = ShardWriter.append, []

def stand_still(self, *args, **kwargs):
    calls.append(None)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return append(self, *args, **kwargs)

ShardWriter.append = stand_still
"""
"""A worker that stops while it writes a shard."""
LAYOUT = LayoutOptions(chunk_rows=32, shard_rows=128, span_samples=10)


def done(path: Path) -> int:
    """Count the samples that are complete; none as long as there is no store."""
    try:
        return int(Store.open(path).completion().complete.sum())
    except (InputError, CorruptStoreError):
        return 0


def test_a_worker_that_is_killed_in_mid_run_changes_nothing(directory: Path) -> None:
    a, b = directory / "a.zarr", directory / "b.zarr"
    make_part(a, SAMPLES[:20], model=MODEL, options=LAYOUT)
    make_part(b, SAMPLES[20:], model=MODEL, options=LAYOUT)
    before = [look(path) for path in (a, b)]
    out = directory / "out.zarr"
    (directory / "preload.py").write_text(STANDS_STILL)
    with dask_cluster(workers=1) as cluster, ThreadPoolExecutor(1) as pool:
        cluster.start_worker("doomed", "--preload", directory / "preload.py")
        cluster.wait_for(2)
        options = Options(codec="max", shard_rows=128, where=Where(scheduler=cluster.address))
        run = pool.submit(consolidate, [a, b], out, options)
        # It stands still with a task in its hands, so the run cannot end before it is dead.
        wait_until(lambda: cluster.is_stopped("doomed") or run.done(), PATIENCE_SECONDS)
        wait_until(lambda: done(out) > 0 or run.done(), PATIENCE_SECONDS)
        assert done(out) < len(SAMPLES)
        assert not run.done()
        cluster.kill("doomed")
        report = run.result(timeout=PATIENCE_SECONDS)

    assert (report.ok, report.complete) == (True, 40)
    assert report.samples_encoded == 40
    check_holds(Store.open(out), SAMPLES)
    assert not list(out.rglob("*.partial"))
    assert [look(path) for path in (a, b)] == before


def test_processes_of_this_machine_write_the_same_as_threads(directory: Path) -> None:
    make_part(directory / "a.zarr", SAMPLES[:6], model=MODEL, options=LAYOUT)
    stores = []
    for name, where in {"threads": Where(workers=1), "processes": Where(processes=2)}.items():
        out = directory / f"{name}.zarr"
        consolidate([directory / "a.zarr"], out, Options(codec="lz4", where=where))
        stores.append(Store.open(out))

    one, other = stores
    assert one.spec.plan_hash == other.spec.plan_hash
    assert np.array_equal(one.completion().digest, other.completion().digest)
    for shard in range(one.layout.shards):
        name = f"hidden_states/c.{shard}.0.0"
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes()

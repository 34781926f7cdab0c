"""On a real Dask cluster: the result is the same, also when a worker is killed in mid run."""

from __future__ import annotations

import os
import signal
import time
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
from tests.verify.cluster import PATIENCE_SECONDS, dask_cluster

if TYPE_CHECKING:
    from pathlib import Path

MODEL = make_model(hidden=1024)
SAMPLES = [Named(f"s{number}", length=100) for number in range(40)]
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
    with dask_cluster(workers=2) as cluster, ThreadPoolExecutor(1) as pool:
        options = Options(codec="max", shard_rows=128, where=Where(scheduler=cluster.address))
        run = pool.submit(consolidate, [a, b], out, options)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done(out) and time.monotonic() < deadline and not run.done():
            time.sleep(0.005)
        # It stands still with tasks in its hands, so the run cannot end before it is dead.
        os.killpg(cluster._processes["worker-0"].pid, signal.SIGSTOP)
        time.sleep(0.5)
        assert 0 < done(out) < len(SAMPLES)
        assert not run.done()
        cluster.kill("worker-0")
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

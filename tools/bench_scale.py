"""Benchmark: how creating, opening, planning, resuming and committing grow with the samples of a store.

    python tools/bench_scale.py               # 1e3 to 1e7 samples, and the picture
    python tools/bench_scale.py --small       # 1e3, 1e5 and 1e7, no picture
    python tools/bench_scale.py --quick       # a smoke run, into build/bench-quick.json

Stores have the layout of Kimi-K2.5's states (shards of 1 GiB at full width) and samples of a few
tokens, so that ten million fit; half of their blocks are marked complete, with a file for each shard.

* open: `hsstore.open`, then tokens, id and state of one sample.
* plan: layout and preflight from lengths, as `hsstore plan`.
* resume: what `extract` does with a store before its first request: open, find what is pending, lay
  out, preflight, claim all spans, and the first block with its tokens.
* first_sample: from the start of the command `hsstore extract`, its processes and imports included,
  until a sample of a noise server is in a shard.
* commit: one sample encoded and committed, in turns over all stores.

Imports are not counted, but in first_sample. Memory is the largest resident size of a process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.claims import Claims
from hsstore.store import Store
from hsstore.writer import BlockWriter
from tests.extraction.processes import Extraction
from tools.bench_json import RESULTS, ROOT, record
from tools.scale import phases
from tools.scale.noise import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

SHM = Path("/dev/shm")  # noqa: S108  # a private directory is made in it
QUICK_RESULTS = RESULTS.with_name("bench-quick.json")
LARGEST = 10_000_000
ONE_BY_ONE = 1_000_000
"""So many samples are also collected one by one, at most: minutes for more, and ten times as many."""
COMMITS = 20
"""To each store."""

Figures = dict[str, Any]


def measure(name: str, store: Path, samples: int, rounds: int = 1) -> Figures:
    """Run a phase in processes of its own; return the medians of its figures."""
    command = [sys.executable, phases.__file__, name, str(store), str(samples)]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(rounds)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def grow(directory: Path, samples: int, rounds: int, *, one_by_one: bool) -> Figures:
    """Measure all of one size but the commits; leaves the store."""
    store = directory / f"{samples}.zarr"
    figures: Figures = {"samples": samples, "create": measure("create", store, samples)}
    files = [path for path in store.rglob("*") if path.is_file()]
    figures["create"] |= {
        "files": len(files),
        "stored_mb": sum(path.stat().st_size for path in files) / 1e6,
    }
    measure("half_fill", store, samples)
    for name in ("open", "plan", "resume"):
        figures[name] = measure(name, store, samples, rounds)
    figures["first_sample"] = first_sample(store, samples, rounds)
    measure("half_fill", store, samples)
    if one_by_one and samples <= ONE_BY_ONE:
        built = directory / "built.zarr"
        figures["build"] = measure("build", built, samples)
        shutil.rmtree(built)
    return figures


def first_sample(store: Path, samples: int, rounds: int) -> Figures:
    """Time the real command until it has appended a sample."""
    seconds, peaks = [], []
    with tempfile.TemporaryDirectory(dir=SHM, prefix="hsstore-bench-") as name:
        spool = Path(name) / "spool"
        with serving(spool, phases.HIDDEN) as url:
            for _ in range(rounds):
                measure("half_fill", store, samples)  # small stores are full soon
                began = time.monotonic()
                run = Extraction(store, Where(url, spool), "--max-in-flight", "4")
                run.wait_for(lambda status: status.tokens_now > 0, 300)
                seconds.append(time.monotonic() - began)
                peaks.append(peak_mb(run))
                run.signal(signal.SIGTERM)
                run.wait()
    return {"seconds": statistics.median(seconds), "peak_mb": max(peaks)}


class Where:
    """Where a server is."""

    def __init__(self, url: str, spool: Path) -> None:
        self.url, self.spool = url, spool


def peak_mb(run: Extraction) -> float:
    """Return the largest resident size that the worker has had."""
    worker = run.worker()
    if worker is None:
        raise RuntimeError(f"the run has no worker:\n{run.log()}")
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def commits(stores: list[Path], rounds: int) -> dict[str, list[float]]:
    """Commit one sample to every store in turns; return milliseconds by store."""
    opened = [Store.open(path) for path in stores]
    todo = [pending_blocks(store, rounds + 1) for store in opened]
    milliseconds: dict[str, list[float]] = {path.stem: [] for path in stores}
    with ThreadPoolExecutor(2) as encoders:
        for number in range(rounds + 1):
            for store, blocks in zip(opened, todo, strict=True):
                taken = commit_one(store, blocks[number], encoders)
                if number:  # the first round warms up
                    milliseconds[store.path.stem].append(taken)
    return milliseconds


def pending_blocks(store: Store, count: int) -> list[int]:
    """Return blocks of which nothing is complete, spread over the store."""
    layout = store.layout
    complete = np.logical_or.reduceat(store.completion().complete, layout.block_sample[:-1])
    free = np.flatnonzero(~complete)
    return [int(free[at]) for at in np.linspace(0, len(free) - 1, count).astype(int)]


def commit_one(store: Store, index: int, encoders: ThreadPoolExecutor) -> float:
    """Open a block, append its first sample, commit; return the milliseconds."""
    block = store.layout.block(index)
    sample = block.samples.start
    sizes = store.spec.geometry
    bits = np.ones((int(store.length[sample]), sizes.slots, sizes.hidden), store.bits)
    with Claims(store, "bench") as claims:
        claims.take([block.span])
        started = time.perf_counter()
        store.completion(slice(block.samples.start, block.samples.stop))
        writer = BlockWriter(
            store.path, store.layout, store.codec, block, run="bench", encoders=encoders
        )
        writer.append(sample, bits)
        store.commit(writer, {}, lambda: claims.check(block.span))
        return (time.perf_counter() - started) * 1e3


def show(sizes: dict[str, Figures]) -> None:
    """Print a line for each size."""
    names = ("create", "build", "open", "plan", "resume", "first_sample")
    print("samples      " + "".join(f"{name:>22}" for name in names) + "      commit")
    for figures in sizes.values():
        cells = [
            f"{figures[name]['seconds']:>11.3f} s{figures[name]['peak_mb']:>6.0f} MB"
            if name in figures
            else f"{'':>22}"
            for name in names
        ]
        print(f"{figures['samples']:<11,}" + "".join(cells) + f"{figures['commit_ms']:>10.1f} ms")


def main() -> None:
    """Run the benchmark, record its figures, print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="three sizes, no picture")
    parser.add_argument("--quick", action="store_true", help="small, into build/bench-quick.json")
    parser.add_argument("--directory", type=Path, default=ROOT / "build", help="on the disk")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    exponents = (3, 4) if given.quick else (3, 5, 7) if given.small else (3, 4, 5, 6, 7)
    whole = not (given.small or given.quick)
    sizes = measure_all(given.directory, exponents, given.rounds, whole=whole)
    show(sizes)
    record("scale", summary(sizes), QUICK_RESULTS if given.quick else RESULTS)
    if whole:
        from tools.scale.plot import plot  # noqa: PLC0415  # needs matplotlib

        plot(sizes, ROOT / "docs/growth.png")


def measure_all(
    directory: Path, exponents: Sequence[int], rounds: int, *, whole: bool
) -> dict[str, Figures]:
    """Measure stores of 10**exponent samples, each; `whole`: also from samples one by one."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix="bench-scale-") as name:
        sizes = {
            str(10**exponent): grow(Path(name), 10**exponent, rounds, one_by_one=whole)
            for exponent in exponents
        }
        stores = [Path(name) / f"{size}.zarr" for size in sizes]
        for size, milliseconds in commits(stores, COMMITS).items():
            sizes[size]["commit_ms"] = statistics.median(milliseconds)
    return sizes


def summary(sizes: dict[str, Figures]) -> Figures:
    """Return what goes into the JSON; the growth of a commit is from the smallest to the largest."""
    found: Figures = {"sizes": sizes}
    smallest, *_, largest = sizes.values()
    found["commit_growth"] = largest["commit_ms"] / smallest["commit_ms"]
    if largest["samples"] == LARGEST:
        found["open_seconds_1e7"] = largest["open"]["seconds"]
        found["open_mb_1e7"] = largest["open"]["peak_mb"]
        found["resume_seconds_1e7"] = largest["resume"]["seconds"]
    return found


if __name__ == "__main__":
    main()

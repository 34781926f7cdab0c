"""Benchmark: dumps in shared memory to durable files on one disk, in alternating runs.

    python tools/bench_ingest.py
    python tools/bench_ingest.py --quick      # a smoke run, into build/bench-quick.json

* hsstore: the pipeline of `hsstore extract` from finished dumps on, with all its guarantees: check,
  digest, encode, append, commit, every fsync. Only the server is missing: dumps are there at once.
* limit: the same chunks through the same codec on all cores into one file, one fsync; nothing is
  checked.
* torch_save: one .pt a sample, each fsynced: what people do today.
* ckpt: one .ckpt a sample as SpecForge writes them, with its keys and folders, each fsynced.
* safetensors: one file a sample, each fsynced.
* zarr_python: zarr-python writes whole shards of the same array with the same codec, then all files
  are fsynced.

States are synthetic bfloat16 with per-channel scales and exponents like those of a real model
(ratio about 1.4). Speeds are GB/s of raw states, as medians; ratios are taken within a round, and only
they mean something on a shared machine. The allocator keeps what it has, for all alike: on a virtual
machine the first touch of a page can cost more than encoding it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bench_json import RESULTS, ROOT, record
from tools.ingest.contestants import CONTESTANTS
from tools.ingest.dumps import write_dumps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tools.ingest.dumps import Dumps

SHM = Path("/dev/shm")  # noqa: S108  # a private directory is made in it
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_ARENA_MAX": "1",
    "NUMPY_MADVISE_HUGEPAGE": "0",
}
GOALS = {"limit": 0.95, "torch_save": 1.5, "ckpt": 1.0, "safetensors": 1.0, "zarr_python": 2.5}
"""What hsstore's speed relative to each is to be."""


class Peak:
    """How far the anonymous memory of this process grows."""

    def __init__(self) -> None:
        self._before_kb = self._most_kb = _anonymous_kb()

    @property
    def megabytes(self) -> float:
        """Growth at the worst moment that was seen, in MB of 1e6 bytes."""
        return (self._most_kb - self._before_kb) * 1024 / 1e6

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Look again and again."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._look, args=(ended,))
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _look(self, ended: threading.Event) -> None:
        while not ended.wait(0.002):
            self._most_kb = max(self._most_kb, _anonymous_kb())


def _anonymous_kb() -> int:
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) if found else 0


def run_once(name: str, given: Dumps, target: Path) -> float:
    """Let one contestant write everything into a directory of its own; return GB/s."""
    directory = target / uuid.uuid4().hex
    directory.mkdir(parents=True)
    try:
        nanoseconds = CONTESTANTS[name](given, directory)
    finally:
        shutil.rmtree(directory)
        os.sync()
    return given.nbytes / nanoseconds


def peak_megabytes(given: Dumps, target: Path) -> float:
    """Return how much memory hsstore takes; what the allocator has kept is given back first."""
    ctypes.CDLL(None).malloc_trim(0)
    peak = Peak()
    with peak.watch():
        run_once("hsstore", given, target)
    return peak.megabytes


def take_turns(
    given: Dumps, target: Path, names: Sequence[str], rounds: int
) -> list[dict[str, float]]:
    """Return GB/s of everyone in every round. The first warms up; every other one runs backwards."""
    results = []
    for number in range(rounds + 1):
        order = names if number % 2 == 0 else names[::-1]
        speeds = {name: run_once(name, given, target) for name in order}
        print("  ".join(f"{name} {speeds[name]:.3f}" for name in names), flush=True)
        results.append(speeds)
    return results[1:]


def summary(results: Sequence[dict[str, float]], peak_mb: float) -> dict[str, object]:
    """Return what goes into the JSON: ratios, how far they spread, and speeds."""
    ratios = {
        name: [speeds["hsstore"] / speeds[name] for speeds in results]
        for name in results[0]
        if name != "hsstore"
    }
    speeds = {name: statistics.median(speeds[name] for speeds in results) for name in results[0]}
    return {
        **{f"vs_{name}": statistics.median(values) for name, values in ratios.items()},
        "peak_mb": peak_mb,
        "rounds": len(results),
        "gb_per_second": speeds,
        "spread": {f"vs_{name}": [min(values), max(values)] for name, values in ratios.items()},
    }


def show(found: dict[str, Any]) -> None:
    """Print speeds, and hsstore's ratio to each beside its goal."""
    for name, speed in found["gb_per_second"].items():
        line = f"{name:<12} {speed:6.3f} GB/s"
        if name != "hsstore":
            low, high = found["spread"][f"vs_{name}"]
            line += f"  hsstore {found[f'vs_{name}']:.2f} of it ({low:.2f} to {high:.2f})"
            line += f", goal {GOALS[name]:.2f}"
        print(line)
    print(f"hsstore's memory grew by up to {found['peak_mb']:.0f} MB")


def main() -> None:
    """Run the benchmark, print a table, write build/bench.json."""
    if any(name not in os.environ for name in KEEP_MEMORY):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})  # noqa: S606
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--rows", type=int, default=1024, help="mean tokens a sample")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--target", type=Path, default=ROOT / "build/bench", help="on the disk")
    parser.add_argument("--only", nargs="*", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--quick", action="store_true", help="small, into build/bench-quick.json")
    given = parser.parse_args()
    if given.quick:
        given.samples, given.rows, given.rounds = 4, 256, 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the dumps are removed first
    with tempfile.TemporaryDirectory(dir=SHM, prefix="hsstore-bench-") as name:
        dumps = write_dumps(Path(name) / "spool", given.samples, given.rows, given.hidden)
        print(f"{dumps.nbytes / 1e9:.2f} GB raw in {len(dumps.rids)} dumps; GB/s:", flush=True)
        peak_mb = peak_megabytes(dumps, given.target)
        results = take_turns(dumps, given.target, given.only, given.rounds)
    found = summary(results, peak_mb)
    show(found)
    record("ingest", found, RESULTS.with_name("bench-quick.json") if given.quick else RESULTS)


if __name__ == "__main__":
    main()

"""Benchmark: batches for a training, by worker processes or none, warm, cold and from a slow disk.

    python tools/bench_loader.py
    python tools/bench_loader.py --quick      # a smoke run, into build/bench-quick.json

The same samples, bfloat16, 7,168 wide, four slots, exponents like those of a real model, as padded EAGLE-3
batches of the same size:

* hsstore: `StreamLoader` over an `Eagle3Stream`, as docs/training.md says;
* hsstore_none: the same over a store made with `--codec none`;
* copy: the limit of those that do not decode, the same bytes copied once into warm memory, by all cores;
* decode: the limit of hsstore, the same chunks, in memory already, decoded into warm memory, by all cores;
* hsstore_map: torch's `DataLoader` over `Eagle3Dataset`, with `eagle3_collate`;
* pt: the same `DataLoader` and collation over one .pt a sample, torch.load;
* specforge, speculators, modelopt: those trainers' own loaders over what `hsstore export` writes for them, where
  they are installed: `make bench-loader` sees to that.

More contenders go into tools/loading/contenders.py. A round is an epoch of everyone; the first, which starts
worker processes, does not count. Warm: everything is in the page cache. Cold: the cache is dropped before
each epoch; a virtual disk may have one below. Slow: the same on a file system whose reads are limited,
which needs root and a block I/O cgroup of version 1.

Speeds are tokens a second; ratios are taken within a round, and are the medians.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.loaders.reading import close_stores
from tools.bench_json import RESULTS, ROOT, record
from tools.hot_memory import hot_pages, keep_memory
from tools.loading.contenders import CONTENDERS, Setting, installed
from tools.reading.samples import write_samples
from tools.reading.slow_disk import limited_reads, mounted_image, problem, spend, write_burst
from tools.rounds import Unit, summary, take_turns, warm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tools.reading.samples import Samples
    from tools.rounds import Rounds

HOT_BATCHES = 8
"""Memory for so many comes from pages that the host has not taken back: worker processes hand batches over in
fresh shared memory, and what that costs on a virtual machine is not what is measured here."""
TOKENS = Unit("tokens_per_second", "tokens/s", "10,.0f")
WORKERS = (0, 2)


def epoch(batches: Iterable[Any], count: Callable[[Any], int]) -> tuple[float, int]:
    """Take every batch of an epoch; return the seconds, and the tokens that gave a row."""
    started = time.perf_counter()
    tokens = sum(map(count, batches))
    return time.perf_counter() - started, tokens


def serve(
    setting: Setting, names: Sequence[str], rounds: int, prepare: Callable[[], None]
) -> Rounds:
    """Let everyone serve an epoch in every round."""
    loaders = {name: CONTENDERS[name].open(setting) for name in names}
    served = set()

    def speed(name: str, _: int) -> float:
        seconds, tokens = epoch(loaders[name], CONTENDERS[name].rows)
        served.add(tokens)
        return tokens / seconds

    results = take_turns(names, rounds, speed, prepare)
    if len(served) != 1:
        raise RuntimeError(f"not everyone served the same tokens: {sorted(served)}")
    return results


def write(directory: Path, given: argparse.Namespace) -> Samples:
    """Write the samples in the formats of everyone."""
    samples = write_samples(directory, given.samples, given.rows, given.hidden)
    for path in directory.glob("*.safetensors"):
        path.unlink()  # nobody here reads them
    for name in given.only:
        if writer := CONTENDERS[name].write:
            writer(samples)
    return samples


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure warm and cold epochs."""
    samples = write(given.target / "samples", given)
    found: dict[str, Any] = {
        "bytes": {name: CONTENDERS[name].stored_bytes(samples) for name in given.only},
        "raw_bytes": samples.nbytes,
    }
    for workers in WORKERS:
        setting = Setting(samples, given.batch_size, workers)
        for kind, prepare in (("warm", warm), ("cold", samples.drop_from_cache)):
            with hot_pages(HOT_BATCHES * samples.nbytes * given.batch_size // samples.count):
                results = serve(setting, given.only, given.rounds, prepare)
            found |= summary(f"{kind}_{workers}_workers", results, TOKENS)
    shutil.rmtree(samples.directory)
    return found


def measure_slow(given: argparse.Namespace) -> dict[str, Any]:
    """Measure cold epochs at a limited speed of the disk."""
    if reason := problem():
        print(f"no slow disk: {reason}")
        return {"slow_disk_problem": reason}
    room_bytes = 8 * given.samples * given.rows * 4 * given.hidden * 2 + (512 << 20)
    found: dict[str, Any] = {"slow_disk_mb_per_second": given.megabytes_per_second}
    with mounted_image(given.target, room_bytes) as mount:
        samples = write(mount / "samples", given)
        speed = given.megabytes_per_second * 1_000_000
        burst = write_burst(mount / "burst", speed)

        def prepare() -> None:
            samples.drop_from_cache()
            spend(burst)

        with limited_reads(mount, speed):  # the worker processes, too: they are started in it
            for workers in WORKERS:
                setting = Setting(samples, given.batch_size, workers)
                results = serve(setting, given.only, given.rounds, prepare)
                found |= summary(f"slow_disk_{workers}_workers", results, TOKENS)
        close_stores()  # or the mount would be busy
    return found


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--rows", type=int, default=1024, help="mean tokens a sample")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes-per-second", type=int, default=500, help="of the slow disk")
    parser.add_argument("--target", type=Path, default=ROOT / "build/bench", help="on the disk")
    parser.add_argument("--only", nargs="*", default=installed(), choices=installed())
    parser.add_argument("--quick", action="store_true", help="small, into build/bench-quick.json")
    given = parser.parse_args()
    given.only = list(dict.fromkeys(["hsstore", *given.only]))
    if given.quick:
        given.samples, given.rows, given.rounds = 4, 200, 1
    given.target /= uuid.uuid4().hex
    return given


def main() -> None:
    """Run the benchmark, print a table, write build/bench.json."""
    keep_memory()
    torch.set_num_threads(1)
    given = arguments()
    options = ("samples", "rows", "hidden", "batch_size")
    found: dict[str, Any] = {name: getattr(given, name) for name in options}
    try:
        found |= measure(given)
        found |= measure_slow(given)
    finally:
        shutil.rmtree(given.target)
    record("loader", found, RESULTS.with_name("bench-quick.json") if given.quick else RESULTS)


if __name__ == "__main__":
    main()

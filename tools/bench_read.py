"""Benchmark: random reads of whole samples, warm, cold and from a slow disk, in alternating rounds.

    python tools/bench_read.py
    python tools/bench_read.py --quick      # a smoke run, into build/bench-quick.json

The same samples, bfloat16, 7,168 wide, exponents like those of a real model:

* hsstore: `hsstore.loaders.read_states`, the completion bit looked up, every crc32c checked;
* eagle3: an item of `Eagle3Dataset`: token ids and loss mask too, the layers of a token side by side;
* limit: the same chunks from memory, decoded by the same threads into warm buffers;
* pt, pt_mmap, safetensors: one file a sample; what is only mapped is copied out;
* zarr_python, zarrs, tensorstore: the same store through other readers, with their own settings.

Warm: everything is in the page cache. Cold: the cache is dropped before each round; a virtual disk may
have one below, so that says little. Slow: the same on a file system whose reads are limited, which
needs root and a block I/O cgroup of version 1.

Speeds are GB/s of raw states; ratios are taken within a round, and are the medians. The allocator
keeps its memory, for all alike.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.store import Store
from tools.bench_json import RESULTS, ROOT, record
from tools.hot_memory import keep_memory
from tools.reading.contestants import CONTESTANTS
from tools.reading.samples import write_samples
from tools.reading.slow_disk import limited_reads, mounted_image, problem, spend, write_burst
from tools.rounds import Unit, summary, take_turns, warm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tools.reading.contestants import ReadOne
    from tools.reading.samples import Samples
    from tools.rounds import Rounds

GIGABYTES = Unit("gb_per_second", "GB/s", "6.3f")
ON_SLOW_DISKS = ("hsstore", "pt", "pt_mmap", "safetensors", "zarr_python")


def check(samples: Samples, readers: Mapping[str, ReadOne]) -> None:
    """Compare what everyone reads."""
    store = Store.open(samples.store)
    for sample in range(samples.count):
        expected = store.payload.read(sample)
        for name, read in readers.items():
            states = read(sample)
            if states is None:
                continue  # the limit decodes, and puts nothing together
            if isinstance(states, torch.Tensor):
                states = states.view(torch.uint16).numpy()
            if not np.array_equal(states.view(np.uint16), expected):
                raise RuntimeError(f"{name} read other states of sample {sample}")


def one_round(samples: Samples, read: ReadOne, order: Sequence[int]) -> float:
    """Read every sample once, one at a time; return GB/s."""
    started = time.perf_counter_ns()
    for sample in order:
        read(sample)
    return samples.nbytes / (time.perf_counter_ns() - started)


def measure(
    samples: Samples, readers: Mapping[str, ReadOne], rounds: int, prepare: Callable[[], None]
) -> Rounds:
    """Let everyone read everything in every round, in an order that is new in each."""
    chance = random.Random(0)  # noqa: S311  # an order, not a secret
    orders = [chance.sample(range(samples.count), samples.count) for _ in range(rounds + 1)]

    def speed(name: str, number: int) -> float:
        return one_round(samples, readers[name], orders[number])

    return take_turns(list(readers), rounds, speed, prepare)


def measure_slow(given: argparse.Namespace) -> dict[str, Any]:
    """Measure cold reads at a limited speed of the disk."""
    if reason := problem():
        print(f"no slow disk: {reason}")
        return {"slow_disk_problem": reason}
    room_bytes = 4 * given.samples * given.rows * 4 * given.hidden * 2 + (512 << 20)
    with mounted_image(given.target, room_bytes) as mount:
        samples = write_samples(mount / "samples", given.samples, given.rows, given.hidden)
        readers = {name: CONTESTANTS[name](samples) for name in ON_SLOW_DISKS}
        speed = given.megabytes_per_second * 1_000_000
        burst = write_burst(mount / "burst", speed)

        def prepare() -> None:
            samples.drop_from_cache()
            spend(burst)

        with limited_reads(mount, speed):
            results = measure(samples, readers, given.rounds, prepare)
        del readers
    found = summary("slow_disk", results, GIGABYTES)
    return found | {"slow_disk_mb_per_second": given.megabytes_per_second}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1024, help="mean tokens a sample")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes-per-second", type=int, default=500, help="of the slow disk")
    parser.add_argument("--target", type=Path, default=ROOT / "build/bench", help="on the disk")
    parser.add_argument("--only", nargs="*", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--quick", action="store_true", help="small, into build/bench-quick.json")
    given = parser.parse_args()
    if given.quick:
        given.samples, given.rows, given.rounds = 3, 200, 1
    given.target /= uuid.uuid4().hex
    return given


def main() -> None:
    """Run the benchmark, print a table, write build/bench.json."""
    keep_memory()
    given = arguments()
    found: dict[str, Any] = {"samples": given.samples, "rows": given.rows, "hidden": given.hidden}
    try:
        samples = write_samples(given.target / "samples", given.samples, given.rows, given.hidden)
        readers = {
            name: CONTESTANTS[name](samples) for name in dict.fromkeys(["hsstore", *given.only])
        }
        check(samples, readers)
        print(f"{samples.nbytes / 1e6:.0f} MB of states in {samples.count} samples")
        for kind, prepare in (("warm", warm), ("cold", samples.drop_from_cache)):
            results = measure(samples, readers, given.rounds, prepare)
            found |= summary(kind, results, GIGABYTES)
        found |= measure_slow(given)
    finally:
        shutil.rmtree(given.target)
    found["megabytes"] = samples.nbytes / 1e6
    record("read", found, RESULTS.with_name("bench-quick.json") if given.quick else RESULTS)


if __name__ == "__main__":
    main()

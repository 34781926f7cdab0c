"""Benchmark: `hsstore verify` against reading, decoding and hashing alone, in alternating rounds.

    python tools/bench_verify.py
    python tools/bench_verify.py --quick      # a smoke run, into build/bench-quick.json

Both go through the same stores, bfloat16 of four slots, with the same number of threads, block by block:

* verify: `verify_store` as the command calls it, plan, files and values included;
* limit: every chunk is read into a buffer that stays and decoded into another one, crc32c included, and the
  digests that the store records are computed: rows whose slots come from several chunks are put together for it,
  in pieces that stay in the cache. Nothing is looked at, or compared.

Two widths: 7,168 (a chunk holds one slot) and 576 (a chunk holds all slots). Everything is in the page cache.
Speeds are GB/s of raw states; ratios are taken within a round, and are the medians. The ratio of CPU seconds
(user and system) stands beside that of the clock: other processes disturb it less.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.create import LayoutOptions, create_store
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.shard import shard_path
from hsstore.shard.ranges import Read
from hsstore.shard.reader import ShardReader
from hsstore.spec import Model, Norm
from hsstore.tasks import Where
from hsstore.verify import VerifyOptions, verify_store
from hsstore.verify.states import PIECE_BYTES
from hsstore.writer import BlockWriter
from tools.bench_json import RESULTS, ROOT, record
from tools.hot_memory import keep_memory
from tools.ingest.dumps import synthetic_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from hsstore.layout import Block
    from hsstore.store import Store

WIDTHS = {"vs_limit": 7168, "vs_limit_narrow": 576}
BLOCKS = 8


def make(path: Path, hidden: int, megabytes: int) -> Store:
    """Write a complete store of synthetic states, in eight blocks."""
    tokens = megabytes * 1_000_000 // (4 * hidden * 2)
    length = [tokens // (BLOCKS * 4)] * BLOCKS * 4
    model = Model(
        id="synthetic",
        capture_hash="0",
        num_layers=61,
        hidden=hidden,
        layers=(1, 29, 57),
        final="post-norm",
        norm=Norm(epsilon=1e-6),
        dtype="bfloat16",
    )
    dataset = TokenizedDataset.from_samples(
        TokenizedSample(f"s{i}", np.arange(n, dtype=np.int32), np.ones(n, np.uint8))
        for i, n in enumerate(length)
    )
    options = LayoutOptions(shard_rows=4 * length[0] + 2048, span_samples=4)
    store = create_store(
        path, dataset, model, norm_weight=np.ones(hidden, np.float32), options=options
    )
    generator = np.random.default_rng(0)
    with ThreadPoolExecutor(os.cpu_count()) as encoders:
        for index in range(store.layout.blocks):
            block = store.layout.block(index)
            writer = BlockWriter(
                path, store.layout, store.codec, block, run="bench", encoders=encoders
            )
            for sample in block.samples:
                writer.append(sample, synthetic_bits(generator, length[sample], hidden))
                writer.flush()
            store.commit(writer, {}, lambda: None)
    return store


def limit(store: Store, workers: int) -> None:
    """Read and decode every chunk, and hash every sample."""
    digests = store.completion().digest
    with ThreadPoolExecutor(workers) as threads:
        blocks = map(store.layout.block, range(store.layout.blocks))
        list(threads.map(lambda block: _limit_of_block(store, block, digests), blocks))


def _limit_of_block(store: Store, block: Block, digests: npt.NDArray[np.uint64]) -> None:
    encoded = np.empty(store.codec.max_bytes, np.uint8)
    chunk_rows, chunk_slots, hidden = store.codec.shape
    groups = store.layout.geometry.slots // chunk_slots
    decoded = np.empty((groups, chunk_rows, chunk_slots, hidden), store.bits)
    shards = {
        shard: ShardReader(shard_path(store.path, shard), store.layout.geometry.shard_chunks)
        for shard in block.shards
    }
    for sample in block.samples:
        hasher = xxhash.xxh3_64()
        for place in store.layout.chunks_of(sample, int(store.length[sample])):
            shard = shards[place.shard]
            offset, nbytes = shard.index[place.chunk].tolist()
            shard.read_range(Read(offset, nbytes, ()), encoded)
            store.codec.decode(encoded[:nbytes], decoded[place.slots.start // chunk_slots])
            if place.slots.stop == store.layout.geometry.slots:
                _hash(hasher, decoded[:, : place.rows.stop - place.rows.start])
        if hasher.intdigest() != int(digests[sample]):
            raise RuntimeError("the limit does not compute the digests")


def _hash(hasher: xxhash.xxh3_64, decoded: npt.NDArray[Any]) -> None:
    """Hash rows, (groups of slots, rows, slots, hidden), in the order of the digest."""
    if len(decoded) == 1:
        hasher.update(decoded.data)
        return
    rows_a_piece = max(PIECE_BYTES // decoded[:, :1].nbytes, 1)
    for start in range(0, decoded.shape[1], rows_a_piece):
        piece = decoded[:, start : start + rows_a_piece].swapaxes(0, 1)
        hasher.update(np.ascontiguousarray(piece).data)


def verify(store: Store, workers: int) -> None:
    """Do what the command does."""
    report = verify_store(store.path, VerifyOptions(where=Where(workers=workers)))
    if not report.ok or report.checked != len(store):
        raise RuntimeError(f"the store is not as it was written: {report.kinds}")


@dataclass(frozen=True, slots=True)
class Took:
    """What one pass over a store took, in ns."""

    wall: int
    cpu: int


def take_turns(store: Store, workers: int, rounds: int) -> list[dict[str, Took]]:
    """Measure both in turn; return what they took, by name and round. The first round warms up."""
    contenders = {"verify": verify, "limit": limit}
    results = []
    for number in range(rounds + 1):
        names = list(contenders) if number % 2 else list(contenders)[::-1]
        results.append({name: _time(contenders[name], store, workers) for name in names})
    return results[1:]


def _time(contender: Callable[[Store, int], None], store: Store, workers: int) -> Took:
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    contender(store, workers)
    return Took(time.perf_counter_ns() - wall, time.process_time_ns() - cpu)


def measure(given: argparse.Namespace) -> dict[str, object]:
    """Measure both widths."""
    found: dict[str, object] = {"megabytes": given.megabytes, "workers": given.workers}
    for key, hidden in WIDTHS.items():
        store = make(given.target / f"{hidden}.zarr", hidden, given.megabytes)
        raw_bytes = int(store.length.sum()) * store.layout.geometry.row_bytes
        results = take_turns(store, given.workers, given.rounds)
        ratios = [took["limit"].wall / took["verify"].wall for took in results]
        cpu_ratios = [took["limit"].cpu / took["verify"].cpu for took in results]
        speeds = {
            name: raw_bytes / statistics.median(took[name].wall for took in results)
            for name in ("verify", "limit")
        }
        found |= {
            key: statistics.median(ratios),
            f"{key}_spread": [min(ratios), max(ratios)],
            f"{key}_cpu": statistics.median(cpu_ratios),
            f"{key}_cpu_spread": [min(cpu_ratios), max(cpu_ratios)],
            f"{key}_gb_per_second": speeds,
        }
        print(
            f"hidden {hidden:>5}: verify {speeds['verify']:.2f} GB/s, limit {speeds['limit']:.2f} GB/s, "
            f"{found[key]:.2f} of the limit ({min(ratios):.2f} to {max(ratios):.2f}), "
            f"by CPU seconds {found[f'{key}_cpu']:.2f} ({min(cpu_ratios):.2f} to {max(cpu_ratios):.2f})",
            flush=True,
        )
        shutil.rmtree(store.path)
    return found


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=4800, help="raw states a store")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--target", type=Path, default=ROOT / "build/bench")
    parser.add_argument("--quick", action="store_true", help="small, into build/bench-quick.json")
    given = parser.parse_args()
    if given.quick:
        given.megabytes, given.rounds = 80, 1
    given.target /= uuid.uuid4().hex
    return given


def main() -> None:
    """Run the benchmark, print a table, write build/bench.json."""
    keep_memory()
    given = arguments()
    given.target.mkdir(parents=True)
    try:
        found = measure(given)
    finally:
        shutil.rmtree(given.target)
    record("verify", found, RESULTS.with_name("bench-quick.json") if given.quick else RESULTS)


if __name__ == "__main__":
    main()

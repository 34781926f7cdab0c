"""Benchmark: dumps in shared memory to durable files on one disk, in alternating runs.

Compares what `hsstore extract` does with a finished dump (check, encode, append, commit, all
fsyncs) with

* one .pt per sample, torch.save and fsync: what people do today,
* the limit: the same chunks through the same codec on all cores into one file, one fsync,
  unchecked.

States are synthetic bfloat16 with per-channel scales and exponents like those of a real model
(ratio about 1.4). Figures are medians; only the ratios mean something on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from extraction.block_sink import BlockSink, OpenBlock
from extraction.check import find_fault
from extraction.handshake import model_of, norm_weight_of
from extraction.spool import ClientInfo, Norm, RequestId, ServerInfo, SpoolClient, SpoolServer
from hsstore.claims import Claims
from hsstore.codec import ChunkCodec
from hsstore.create import create_store, layout_for
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.files import fsync_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from extraction.spool import Dump
    from hsstore.store import Store

SHM = Path("/dev/shm")  # noqa: S108  # a private directory is made in it
RUN = "bench"
DUMPS_FOR = "bench-store"
"""What the dumps name as their store."""


@dataclass(frozen=True)
class Input:
    """The dumps, and what they were made from."""

    spool: SpoolClient
    rids: list[RequestId]
    dataset: TokenizedDataset
    info: ServerInfo
    nbytes: int


def server_info(instance: str, hidden: int) -> ServerInfo:
    """Describe the server whose dumps these could be: three layers and the final state."""
    weight = np.ones(hidden, dtype="<f4").tobytes()
    return ServerInfo(
        instance=instance,
        capture_hash="0" * 64,
        model="synthetic",
        num_layers=61,
        hidden=hidden,
        layers=(1, 29, 57),
        final="post-norm",
        dtype="bfloat16",
        norm=Norm("rmsnorm", 1e-6, weight),
        engine="bench",
        engine_version="0",
        plugin_version="0",
        pid=os.getpid(),
        host="localhost",
        url="http://127.0.0.1:1",
    )


def synthetic_bits(rng: np.random.Generator, rows: int, hidden: int) -> npt.NDArray[np.uint16]:
    """Make states (rows, 4, hidden): normal, scaled per slot and channel; raw bfloat16 bits."""
    scale = rng.lognormal(0.0, 0.5, (1, 4, hidden)).astype(np.float32)
    values = rng.standard_normal((rows, 4, hidden), dtype=np.float32) * scale
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_dumps(directory: Path, samples: int, rows: int, hidden: int) -> Input:
    """Let a spool server write one dump a sample."""
    rng = np.random.default_rng(0)
    server = SpoolServer(directory)
    info = server_info(server.instance, hidden)
    server.announce(info)
    spool = SpoolClient(directory, ClientInfo(RUN, DUMPS_FOR))
    tokenized, rids = [], []
    for sample in range(samples):
        length = int(rng.integers(rows // 2, rows * 3 // 2))
        tokens = rng.integers(0, 1000, length).astype(np.int32)
        rid = RequestId(RUN, sample, 1, length)
        server.put(str(rid), 0, synthetic_bits(rng, length, hidden), tokens)
        server.seal(str(rid))
        tokenized.append(TokenizedSample(f"s{sample}", tokens, np.ones(length, np.uint8)))
        rids.append(rid)
    dataset = TokenizedDataset.from_samples(tokenized)
    return Input(spool, rids, dataset, info, dataset.tokens * 4 * hidden * 2)


def run_hsstore(given: Input, directory: Path) -> int:
    """Commit all dumps to a store that was planned before the clock started."""
    store = create_store(
        directory / "store.zarr",
        given.dataset,
        model_of(given.info),
        norm_weight=norm_weight_of(given.info),
    )
    with Claims(store, RUN) as claims:
        claims.take(range(store.layout.spans))
        started = time.perf_counter_ns()
        asyncio.run(fill(store, claims, given))
        return time.perf_counter_ns() - started


async def fill(store: Store, claims: Claims, given: Input) -> None:
    """Check, append and commit block by block, as the pipeline does."""
    sink = BlockSink(store, claims, RUN, os.cpu_count() or 1)
    for index in range(store.layout.blocks):
        block = store.layout.block(index)
        tokens = {sample: store.input_ids(sample) for sample in block.samples}
        open_block = OpenBlock(block, tokens, set())
        await asyncio.gather(*(take(sink, store, open_block, given, s) for s in block.samples))
        await sink.commit(open_block)
    sink.close()


async def take(
    sink: BlockSink, store: Store, open_block: OpenBlock, given: Input, sample: int
) -> None:
    """Take one dump into its block."""
    dump = given.spool.open_dump(given.rids[sample])
    await asyncio.to_thread(check, store, open_block.tokens[sample], dump)
    await sink.append(open_block, sample, dump)


def check(store: Store, tokens: npt.NDArray[np.int32], dump: Dump) -> None:
    """Make the checks that precede a commit."""
    fault = find_fault(dump, tokens, DUMPS_FOR, store.spec.model)
    if fault is not None:
        raise RuntimeError(fault.message)


def run_torch_save(given: Input, directory: Path) -> int:
    """Write one .pt a sample, and make each durable."""
    started = time.perf_counter_ns()
    for sample, rid in enumerate(given.rids):
        with given.spool.open_dump(rid) as dump:
            save_one(directory / f"{sample}.pt", dump)
    fsync_directory(directory)
    return time.perf_counter_ns() - started


def save_one(path: Path, dump: Dump) -> None:
    """Save what a training sample needs, as SpecForge's files hold it."""
    states = torch.frombuffer(bytearray(dump.hidden), dtype=torch.bfloat16)
    states = states.view(dump.layout.shape)
    record = {
        "input_ids": torch.tensor(dump.input_ids),
        "aux_hidden_state": states[:, :-1].flatten(1)[None],
        "hidden_state": states[:, -1][None],
    }
    with path.open("wb") as file:
        torch.save(record, file)
        file.flush()
        os.fsync(file.fileno())


def run_limit(given: Input, directory: Path) -> int:
    """Encode the same chunks on all cores into one file, and fsync once."""
    layout = layout_for(given.dataset.length, model_of(given.info))
    codec = ChunkCodec(layout.geometry.chunk_shape, "bfloat16")
    started = time.perf_counter_ns()
    with ThreadPoolExecutor(os.cpu_count()) as pool, (directory / "limit").open("wb") as file:
        for sample, rid in enumerate(given.rids):
            dump = given.spool.open_dump(rid)
            hidden = dump.hidden
            places = layout.chunks_of(sample, len(hidden))
            parts = [hidden[p.rows, p.slots] for p in places]
            for encoded in pool.map(codec.encode, parts):
                file.write(encoded)
            del hidden, parts
            dump.close()
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter_ns() - started


CONTESTANTS: dict[str, Callable[[Input, Path], int]] = {
    "hsstore": run_hsstore,
    "torch_save": run_torch_save,
    "limit": run_limit,
}


def measure(given: Input, target: Path, rounds: int) -> dict[str, list[float]]:
    """Return GB/s (raw bytes) of every contestant in every round."""
    speeds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds + 1):
        for name, contestant in CONTESTANTS.items():
            directory = target / uuid.uuid4().hex
            directory.mkdir(parents=True)
            nanoseconds = contestant(given, directory)
            shutil.rmtree(directory)
            os.sync()
            if number:  # the first round warms up
                speeds[name].append(given.nbytes / nanoseconds)
    return speeds


def main() -> None:
    """Run the benchmark, print a table, write build/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--rows", type=int, default=512, help="mean tokens a sample")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--target", type=Path, default=Path("build/bench"), help="on the disk")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=SHM, prefix="hsstore-bench-") as name:
        spool = Path(name) / "spool"
        given = write_dumps(spool, arguments.samples, arguments.rows, arguments.hidden)
        speeds = measure(given, arguments.target, arguments.rounds)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(f"{given.nbytes / 1e9:.2f} GB raw in {len(given.rids)} dumps, {arguments.rounds} rounds")
    for name, values in speeds.items():
        print(f"{name:<12} {medians[name]:6.3f} GB/s  (of {min(values):.3f} to {max(values):.3f})")
    ingest = {
        "vs_torch_save": medians["hsstore"] / medians["torch_save"],
        "vs_limit": medians["hsstore"] / medians["limit"],
    }
    print("  ".join(f"{name} {value:.2f}" for name, value in ingest.items()))
    Path("build").mkdir(exist_ok=True)
    Path("build/bench.json").write_text(json.dumps({"ingest": ingest}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A simulated run of the Kimi-K2.5 case: `hsstore extract` on 37,312 samples and 87.8 M tokens.

    python tools/simulate_kimi.py                # some minutes on two cores, 9 GB of disk
    python tools/simulate_kimi.py --samples 2000 # a smoke run

A noise server takes the place of the model, and states are 16 wide instead of 7,168. All else is as it
would be: lengths as of chats, the store's blocks, shards and spans, the spool and memory budgets in
proportion to the width, the real command, its commits and fsyncs. What does not depend on the width (files,
commits, requests, tokens in the spool) is measured; bytes and hours at full width follow by arithmetic.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from extraction.spool import SpoolView
from hsstore.codec import DEFAULT_CODEC, USUAL_RATIOS
from hsstore.create import create_store
from hsstore.info import store_info
from hsstore.store import Store
from tests.extraction.processes import Extraction
from tools.bench_json import ROOT, record
from tools.bench_scale import Where
from tools.scale import kimi
from tools.scale.noise import NoiseEngine, serving

SHM = Path("/dev/shm")  # noqa: S108  # a private directory is made in it
SAMPLES, TOKENS = 37_312, 87_800_000
SPOOL_BYTES, MEMORY_BYTES = 64e9, 2e9
"""Budgets at full width."""
DISK_SPEEDS = (0.2, 0.5, 1.0, 2.0)
"""GB/s that the file system takes."""
SERVER_SPEEDS = (5_000, 10_000, 20_000)
"""Tokens a second."""
CHECKED_SAMPLES = 200


@dataclass
class Peaks:
    """The largest values seen of a run."""

    spool_bytes: int = 0
    anonymous_bytes: int = 0
    resident_bytes: int = 0

    def look(self, run: Extraction, spool: SpoolView) -> None:
        """Look at the spool, and at the worker's memory."""
        self.spool_bytes = max(self.spool_bytes, spool.scan().allocated_bytes)
        worker = run.worker()
        if worker is None:
            return
        try:
            status = Path(f"/proc/{worker.pid}/status").read_text()
        except OSError:
            return
        if "RssAnon:" in status:
            self.anonymous_bytes = max(self.anonymous_bytes, _kilobytes(status, "RssAnon:") * 1024)
            self.resident_bytes = max(self.resident_bytes, _kilobytes(status, "VmHWM:") * 1024)


def _kilobytes(status: str, name: str) -> int:
    return int(status.split(name)[1].split(maxsplit=1)[0])


def simulate(store: Path, length: kimi.Int64s, hidden: int) -> dict[str, Any]:
    """Create the store, fill it with the real command, and look at what it takes."""
    started = time.monotonic()
    dataset = kimi.make_dataset(length)
    weight = np.ones(hidden, np.float32)
    create_store(
        store,
        dataset,
        kimi.narrow_model(hidden),
        norm_weight=weight,
        options=kimi.full_layout(length),
    )
    created = time.monotonic()
    del dataset
    share = hidden / kimi.HIDDEN
    budgets = ["--spool-budget-gb", str(SPOOL_BYTES * share / 1e9)]
    budgets += ["--memory-gb", str(MEMORY_BYTES * share / 1e9)]
    peaks = Peaks()
    with tempfile.TemporaryDirectory(dir=SHM, prefix="hsstore-bench-") as name:
        spool = Path(name) / "spool"
        with serving(spool, hidden) as url:
            run = Extraction(store, Where(url, spool), *budgets)
            began = time.monotonic()
            while run.process.poll() is None:
                peaks.look(run, SpoolView(spool))
                time.sleep(0.1)
            ended = run.wait()
    if ended.code:
        raise RuntimeError(f"the run ended with code {ended.code}:\n{ended.log[-2000:]}")
    return {
        "create_seconds": created - started,
        "extract_seconds": time.monotonic() - began,
        "peak_spool_bytes": peaks.spool_bytes,
        "peak_anonymous_bytes": peaks.anonymous_bytes,
        "peak_resident_bytes": peaks.resident_bytes,
    }


def check(store: Store, hidden: int) -> int:
    """Compare some samples with what the server computes; return how many."""
    engine = NoiseEngine(hidden)
    samples = np.random.default_rng(3).choice(
        len(store), min(CHECKED_SAMPLES, len(store)), replace=False
    )
    for sample in samples.tolist():
        expected = engine.capture(store.input_ids(sample), predict=False, progress=lambda: None)
        if not np.array_equal(store.states(sample).view(np.uint16), expected.hidden):
            raise RuntimeError(f"sample {sample} is not what the server sent")
    return len(samples)


def sizes_on_disk(path: Path) -> dict[str, int]:
    """Return the bytes of every array, and the files beside the shards."""
    sizes = {
        child.name: sum(file.stat().st_size for file in child.rglob("*") if file.is_file())
        for child in path.iterdir()
        if child.is_dir()
    }
    shards = sum(1 for _ in (path / "hidden_states").glob("c.*"))
    files = sum(1 for file in path.rglob("*") if file.is_file())
    return {
        **{f"{name}_bytes": size for name, size in sorted(sizes.items())},
        "small_files": files - shards,
    }


def full_width(store: Store, run: dict[str, Any], hidden: int) -> dict[str, Any]:
    """Work out what it takes at 7,168."""
    ratio = USUAL_RATIOS[DEFAULT_CODEC]
    tokens, layout = store.spec.dataset.tokens, store.layout
    raw = tokens * kimi.ROW_BYTES
    stored = raw / ratio
    scale = kimi.HIDDEN / hidden
    full = kimi.full_geometry(store.length.astype(np.int64))
    index = layout.shards * (16 * full.shard_chunks + 4)
    return {
        "bytes_raw": raw,
        "ratio": ratio,
        "bytes_stored": stored,
        "shards": layout.shards,
        "index_bytes": index,
        "peak_spool_bytes": run["peak_spool_bytes"] * scale,
        "hours_by_disk": {str(speed): stored / speed / 1e9 / 3600 for speed in DISK_SPEEDS},
        "hours_by_server": {str(speed): tokens / speed / 3600 for speed in SERVER_SPEEDS},
        "mb_per_second_by_server": {
            str(speed): speed * kimi.ROW_BYTES / ratio / 1e6 for speed in SERVER_SPEEDS
        },
        "hours_of_our_own_overhead": run["extract_seconds"] / 3600,
    }


def main() -> None:
    """Simulate, record, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--directory", type=Path, default=ROOT / "build", help="on the disk")
    arguments = parser.parse_args()
    samples, hidden = arguments.samples, arguments.hidden
    length = kimi.chat_lengths(samples, TOKENS * samples // SAMPLES)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="kimi-") as name:
        path = Path(name) / "kimi.zarr"
        run = simulate(path, length, hidden)
        store = Store.open(path)
        info = store_info(store)
        figures = {
            "samples": info.complete,
            "tokens": info.tokens_complete,
            "longest": int(length.max()),
            "hidden": hidden,
            "files": info.files,
            "bytes_raw": info.bytes_raw,
            "bytes_stored": info.bytes_stored,
            "blocks": info.blocks,
            "spans": info.spans,
            "checked_bit_for_bit": check(store, hidden),
            **run,
            "on_disk": sizes_on_disk(path),
            "full_width": full_width(store, run, hidden),
        }
    if samples == SAMPLES:
        record("kimi", figures)
    show(figures)


def show(figures: dict[str, Any], indent: str = "") -> None:
    """Print figures, one a line."""
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{indent}{name}:")
            show(value, indent + "  ")
        else:
            print(
                f"{indent}{name}: {value:,}"
                if isinstance(value, int)
                else f"{indent}{name}: {value:,.3f}"
            )


if __name__ == "__main__":
    main()

"""What is measured of one store, each in a process of its own so that its peak memory is its own.

python tools/scale/phases.py PHASE STORE [SAMPLES]
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import zarr

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from extraction.block_order import by_block
from extraction.preflight import free_space, preflight
from hsstore.claims import Claims
from hsstore.create import create_store
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.layout import plan_layout
from hsstore.store import Store
from tools.scale import kimi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from hsstore.layout import Layout

    Int64s = kimi.Int64s

T = TypeVar("T")

HIDDEN = 16
"""The width on disk; the layout is that of 7,168."""
LONGEST = 31
"""Tokens of a sample, at most: what is measured grows with samples, and ten million must fit here."""


def lengths(samples: int) -> Int64s:
    """Draw lengths: each sample takes one row of chunks."""
    return np.random.default_rng(0).integers(1, LONGEST + 1, samples)


def create(path: Path, samples: int) -> dict[str, float]:
    """Create a store from arrays that are in memory already."""
    length = lengths(samples)
    dataset = kimi.make_dataset(length)
    before_mb = peak_mb()
    started = time.perf_counter()
    store = _create(path, dataset, length)
    seconds = time.perf_counter() - started
    layout = store.layout
    return {
        "seconds": seconds,
        "dataset_mb": before_mb,
        "peak_mb": peak_mb(),
        "tokens": dataset.tokens,
        "rows": layout.rows,
        "shards": layout.shards,
        "spans": layout.spans,
    }


def build(path: Path, samples: int) -> dict[str, float]:
    """Create a store from samples that come one by one, as from files."""
    length = lengths(samples)
    started = time.perf_counter()
    dataset = TokenizedDataset.from_samples(_one_by_one(length))
    collected = time.perf_counter()
    _create(path, dataset, length)
    ended = time.perf_counter()
    return {
        "collect_seconds": collected - started,
        "seconds": ended - started,
        "peak_mb": peak_mb(),
    }


def _create(path: Path, dataset: TokenizedDataset, length: Int64s) -> Store:
    weight = np.ones(HIDDEN, np.float32)
    options = kimi.full_layout(length)
    return create_store(
        path, dataset, kimi.narrow_model(HIDDEN), norm_weight=weight, options=options
    )


def _one_by_one(length: Int64s) -> Iterator[TokenizedSample]:
    tokens, mask = np.arange(LONGEST, dtype=np.int32), np.ones(LONGEST, np.uint8)
    for sample, count in enumerate(length.tolist()):
        yield TokenizedSample(f"chat-{sample}", tokens[:count], mask[:count])


def half_fill(path: Path, _: int) -> dict[str, float]:
    """Mark every other block, by chance, as complete; its shard is an empty file."""
    store = Store.open(path)
    layout = store.layout
    rng = np.random.default_rng(2)
    done = rng.random(layout.blocks) < 0.5
    complete = np.repeat(done, np.diff(layout.block_sample))
    values = {
        "complete": complete,
        "failed": np.zeros(len(store), np.uint8),
        "digest": complete * rng.integers(1, 1 << 62, len(store)).astype(np.uint64),
    }
    for name, column in values.items():
        array = zarr.open_array(path / name, mode="r+")
        array.with_config({"write_empty_chunks": True})[:] = column
    for block in np.flatnonzero(done).tolist():
        (path / "hidden_states" / f"c.{layout.block(block).shards.start}.0.0").touch()
    return {"complete": int(complete.sum())}


def open_and_read(path: Path, samples: int) -> dict[str, float]:
    """Open a store and ask for one sample in its middle: tokens, id, whether it is there."""
    started = time.perf_counter()
    store = Store.open(path)
    sample = samples // 2
    store.input_ids(sample)
    store.sample_id(sample)
    store.completion(slice(sample, sample + 1))
    return {"seconds": time.perf_counter() - started, "peak_mb": peak_mb()}


def plan(_: Path, samples: int) -> dict[str, float]:
    """Lay samples out, and compare what they need with the machine, as `hsstore plan` does."""
    length = lengths(samples)
    started = time.perf_counter()
    layout = plan_layout(length, kimi.full_geometry(length))
    _check(layout, length, np.ones(samples, np.bool_))
    return {"seconds": time.perf_counter() - started, "peak_mb": peak_mb()}


def resume(path: Path, _: int) -> dict[str, float]:
    """Do what `extract` does with a store before its first request."""
    parts: dict[str, float] = {}
    started = time.perf_counter()
    store = _timed(parts, "open", lambda: Store.open(path))
    completion = _timed(parts, "completion", store.completion)
    layout = _timed(parts, "layout", lambda: store.layout)
    pending = completion.pending
    _timed(parts, "preflight", lambda: _check(layout, store.length, pending))
    with Claims(store, f"bench{os.getpid()}") as claims:
        todo = np.flatnonzero(pending)
        spans = np.unique(todo // store.spec.layout.span_samples).tolist()
        _timed(parts, "claims", lambda: claims.take(spans))
        # A run reads it anew at each of its steps: what it is about, and whether it is filled.
        _timed(parts, "completion_again", lambda: _read_again(store, 5))
        _, samples = _timed(parts, "first_block", lambda: next(by_block(layout, todo)))
        _timed(parts, "tokens", lambda: store.input_ids_of(samples))
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_mb": peak_mb(), "claims": len(spans), **parts}


def _read_again(store: Store, times: int) -> None:
    for _ in range(times):
        store.completion()


def _timed(parts: dict[str, float], name: str, work: Callable[[], T]) -> T:
    started = time.perf_counter()
    result = work()
    parts[f"{name}_seconds"] = time.perf_counter() - started
    return result


def _check(layout: Layout, length: npt.NDArray[Any], pending: npt.NDArray[np.bool_]) -> None:
    preflight(
        layout,
        length,
        pending,
        space=free_space(Path.cwd()),
        spool_budget_bytes=1 << 34,
        memory_bytes=1 << 31,
        memory_free_bytes=1 << 33,
        skip_too_large=False,
    )


def peak_mb() -> float:
    """Return the largest resident size of this process so far, in units of 1e6 bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


PHASES = {
    "create": create,
    "build": build,
    "half_fill": half_fill,
    "open": open_and_read,
    "plan": plan,
    "resume": resume,
}

if __name__ == "__main__":
    print(json.dumps(PHASES[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))

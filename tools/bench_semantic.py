"""What `hsstore verify --semantic` costs a token, by one thread, and what the full vocabulary would cost.

    python tools/bench_semantic.py

Random states of hidden size 576, and 7,168, that carry their tokens as a model's do, in stores in shared memory;
reading and decoding them is part of the cost. CPU seconds, so that other work on the machine counts little. What is
learned from a store once (a few hundred samples) is not in the cost a token; it is given in seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.create import LayoutOptions, create_store
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.semantic.blas import one_blas_thread
from hsstore.semantic.check import prepare
from hsstore.semantic.context import Context
from hsstore.semantic.measure import measure
from hsstore.spec import Model, Norm
from hsstore.tasks import Where
from hsstore.writer import BlockWriter
from tools.bench_json import record
from tools.semantic.checkpoint import write_checkpoint

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.store import Store

VOCABULARY = 49_152
SLOTS = 4
ROUNDS = 3
FULL_ROWS = 64


def main() -> int:
    """Measure both widths, and record the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    results: dict[str, float] = {}
    for hidden in (576, 7168):
        with tempfile.TemporaryDirectory(prefix="hsstore-bench-", dir="/dev/shm") as scratch:
            found = measure_width(Path(scratch), hidden, options.samples, options.tokens)
        suffix = "" if hidden == 576 else f"_{hidden}"
        results |= {f"{name}{suffix}": value for name, value in found.items()}
    for name, value in results.items():
        print(f"{name:44} {value:10.1f}")
    record("verify", results)
    return 0


def measure_width(scratch: Path, hidden: int, samples: int, tokens: int) -> dict[str, float]:
    """Measure one hidden size; the best of some rounds, which alternate."""
    generator = np.random.default_rng(0)
    embedding = generator.normal(size=(VOCABULARY, hidden)).astype(ml_dtypes.bfloat16)
    weight = generator.uniform(0.5, 2, hidden).astype(np.float32)
    model_dir = write_checkpoint(scratch / "model", embedding.view(np.uint16), weight)
    store = make_store(scratch / "store.zarr", embedding, weight, samples, tokens)
    started = time.process_time()
    prepared = prepare(store.path, model_dir, Where(workers=1), seed=0)
    learned_seconds = time.process_time() - started
    context = Context(prepared.source)
    ours, full, read = [], [], []
    with one_blas_thread():
        for _ in range(ROUNDS):
            ours.append(_cpu_seconds(lambda: [measure(context, s) for s in range(samples)]))
            read.append(_cpu_seconds(lambda: [store.states(s) for s in range(samples)]))
            full.append(_cpu_seconds(lambda: full_vocabulary(store, embedding)))
    return {
        "semantic_us_per_token": min(ours) / (samples * tokens) * 1e6,
        "semantic_read_us_per_token": min(read) / (samples * tokens) * 1e6,
        "full_vocabulary_us_per_token": min(full) / FULL_ROWS * 1e6,
        "semantic_learn_seconds": learned_seconds,
    }


def _cpu_seconds(work: Any) -> float:  # noqa: ANN401
    started = time.process_time()
    work()
    return time.process_time() - started


def full_vocabulary(store: Store, embedding: npt.NDArray[Any]) -> float:
    """Take the loss of a few rows against all tokens, in blocks that fit the cache."""
    final = store.states(0, rows=slice(0, FULL_ROWS), slots=[SLOTS - 1])[:, 0].astype(np.float32)
    total = np.full(FULL_ROWS, -np.inf, np.float32)
    for first in range(0, VOCABULARY, 4096):
        logits = final @ embedding[first : first + 4096].astype(np.float32).T
        total = np.logaddexp(total, np.logaddexp.reduce(logits, axis=1))
    return float(total.sum())


def make_store(
    path: Path,
    embedding: npt.NDArray[Any],
    weight: npt.NDArray[np.float32],
    samples: int,
    tokens: int,
) -> Store:
    """Make a store whose auxiliary states hold their token, and the final one the next."""
    hidden = embedding.shape[1]
    generator = np.random.default_rng(1)
    ids = generator.integers(0, VOCABULARY, (samples, tokens), dtype=np.int32)
    dataset = TokenizedDataset.from_samples(
        TokenizedSample(f"{at}", row, np.ones(tokens, np.uint8), "train", {})
        for at, row in enumerate(ids)
    )
    model = Model(
        id="random",
        capture_hash="0",
        num_layers=30,
        hidden=hidden,
        layers=(1, 14, 26),
        final="post-norm",
        norm=Norm(epsilon=1e-5),
        dtype="bfloat16",
    )
    store = create_store(path, dataset, model, norm_weight=weight, options=LayoutOptions())
    with ThreadPoolExecutor(1) as encoders:
        for index in range(store.layout.blocks):
            block = store.layout.block(index)
            writer = BlockWriter(
                path, store.layout, store.codec, block, run="run", encoders=encoders
            )
            for sample in block.samples:
                writer.append(sample, _states(embedding, weight, ids[sample], generator))
            store.commit(writer, {}, lambda: None)
    return store


def _states(
    embedding: npt.NDArray[Any],
    weight: npt.NDArray[np.float32],
    ids: npt.NDArray[np.int32],
    generator: np.random.Generator,
) -> npt.NDArray[np.uint16]:
    own = embedding[ids].astype(np.float32)
    after = embedding[np.roll(ids, -1)].astype(np.float32)
    states = np.stack([own, own, own, after / weight], axis=1)
    states += generator.standard_normal(states.shape, np.float32)
    size = np.sqrt(np.square(states[:, -1]).mean(axis=1, keepdims=True))
    states[:, -1] *= weight / size
    return states.astype(ml_dtypes.bfloat16).view(np.uint16)


if __name__ == "__main__":
    sys.exit(main())

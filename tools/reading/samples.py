"""The same samples as a store, as .pt and as safetensors, for a benchmark of reading."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import safetensors.torch
import torch

from hsstore.create import create_store
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.spec import Model, Norm
from hsstore.writer import BlockWriter
from tools.ingest.dumps import synthetic_bits

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.store import Store

LAYERS = (1, 29, 57)


@dataclass(frozen=True)
class Samples:
    """Where the samples lie."""

    directory: Path
    rows: list[int]
    """Tokens of each."""
    nbytes: int
    """Of all states, raw."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.rows)

    @property
    def store(self) -> Path:
        """The store."""
        return self.directory / "store.zarr"

    @property
    def uncompressed(self) -> Path:
        """The same samples in a store without compression, if somebody has written it."""
        return self.directory / "uncompressed.zarr"

    @property
    def states(self) -> Path:
        """Its array, as zarr-python and TensorStore open it."""
        return self.store / "hidden_states"

    @property
    def states_as_uint16(self) -> Path:
        """The same shards under metadata that call them uint16: zarrs knows no bfloat16."""
        return self.directory / "uint16.zarr"

    def file(self, sample: int, suffix: str) -> Path:
        """Return a sample's own file."""
        return self.directory / f"{sample}{suffix}"

    def drop_from_cache(self) -> None:
        """Have the kernel forget all that it has read of these files."""
        for path in self.directory.rglob("*"):
            if path.is_file():
                drop_from_cache(path)


def drop_from_cache(path: Path) -> None:
    """Have the kernel forget what it has read of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def write_samples(directory: Path, count: int, rows: int, hidden: int) -> Samples:
    """Write samples of `rows` tokens on average, durably: clean pages can be dropped."""
    generator = np.random.default_rng(0)
    length = generator.integers(rows // 2, rows * 3 // 2, count).tolist()
    store = _create(directory / "store.zarr", length, hidden)
    samples = Samples(directory, length, sum(length) * store.spec.geometry.row_bytes)
    with ThreadPoolExecutor(os.cpu_count()) as encoders:
        for index in range(store.layout.blocks):
            block = store.layout.block(index)
            writer = BlockWriter(
                store.path, store.layout, store.codec, block, run="bench", encoders=encoders
            )
            for sample in block.samples:
                bits = synthetic_bits(generator, length[sample], hidden)
                _save(samples, sample, store.input_ids(sample), bits)
                writer.append(sample, bits)
                writer.flush()
            store.commit(writer, {}, _owned)
    _view_as_uint16(samples)
    os.sync()
    return samples


def _create(path: Path, length: list[int], hidden: int) -> Store:
    model = Model(
        id="synthetic",
        capture_hash="0",
        num_layers=61,
        hidden=hidden,
        layers=LAYERS,
        final="post-norm",
        norm=Norm(epsilon=1e-6),
        dtype="bfloat16",
    )
    dataset = TokenizedDataset.from_samples(
        TokenizedSample(f"s{i}", np.arange(n, dtype=np.int32), np.ones(n, np.uint8))
        for i, n in enumerate(length)
    )
    return create_store(path, dataset, model, norm_weight=np.ones(hidden, np.float32))


def _save(
    samples: Samples, sample: int, ids: npt.NDArray[np.int32], bits: npt.NDArray[np.uint16]
) -> None:
    tensors = {
        "input_ids": torch.from_numpy(ids),
        "hidden_states": torch.from_numpy(bits).view(torch.bfloat16),
    }
    torch.save(tensors, samples.file(sample, ".pt"))
    safetensors.torch.save_file(tensors, samples.file(sample, ".safetensors"))


def _view_as_uint16(samples: Samples) -> None:
    metadata = json.loads((samples.states / "zarr.json").read_text())
    samples.states_as_uint16.mkdir()
    text = json.dumps(metadata | {"data_type": "uint16", "fill_value": 0})
    (samples.states_as_uint16 / "zarr.json").write_text(text)
    for shard in samples.states.glob("c.*"):
        (samples.states_as_uint16 / shard.name).symlink_to(shard)


def _owned() -> None:
    """Say that nobody else writes this store."""

"""Whose loaders feed a training: each opens its data once, and then serves epoch after epoch.

Each is one entry of `CONTENDERS`: a `Contender` that writes its own files beside those of others and opens
them. The loaders of other projects' trainers take part where these are installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from hsstore.consolidate import Options, consolidate
from hsstore.loaders import (
    Eagle3Dataset,
    Eagle3Sample,
    Eagle3Stream,
    StreamLoader,
    eagle3_collate,
)
from hsstore.store import Store
from tools.loading import trainers
from tools.loading.limit import Copy, Decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tools.reading.samples import Samples

    Epochs = Iterable[Any]
    """Can be iterated again and again: the batches of an epoch each time."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What everyone is given."""

    samples: Samples
    batch_size: int
    workers: int
    """Processes beside the training's own."""


def padded_rows(batch: Any) -> int:  # noqa: ANN401  # everybody's own
    """Count the rows of a padded batch, which are shifted: each has its next token."""
    return int(batch["attention_mask"].sum())


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to load."""

    open: Callable[[Setting], Epochs]
    files: str
    """What it reads, as a pattern inside the directory of the samples."""
    write: Callable[[Samples], None] | None = None
    """Writes its files, if `tools.reading.samples` has not, durably."""
    rows: Callable[[Any], int] = padded_rows
    """Counts the rows of a batch that can be trained on."""
    needs: str = "torch"
    """The package without which it cannot take part."""

    def stored_bytes(self, samples: Samples) -> int:
        """Bytes that it reads in an epoch."""
        files = [path for path in samples.directory.glob(self.files) if path.is_file()]
        return sum(path.stat().st_size for path in files)


def stream(setting: Setting) -> Epochs:
    """Open a store as the documentation says."""
    return _stream(setting.samples.store, setting)


def uncompressed(setting: Setting) -> Epochs:
    """Open a store that a user has made with `--codec none`: for a training that reads a page cache."""
    return _stream(setting.samples.uncompressed, setting)


def write_uncompressed(samples: Samples) -> None:
    """Copy the store, its chunks not compressed."""
    consolidate([samples.store], samples.uncompressed, Options(codec="none"))


def _stream(store: Path, setting: Setting) -> Epochs:
    batches = Eagle3Stream(store, batch_size=setting.batch_size)
    budget = 2 * max(setting.workers, 1) * batches.largest_batch_bytes()
    return StreamLoader(
        batches,
        num_workers=setting.workers,
        prefetch_bytes=budget,
        persistent_workers=setting.workers > 0,
    )


def mapped(setting: Setting) -> Epochs:
    """Open a store as a map-style dataset."""
    return _data_loader(Eagle3Dataset(setting.samples.store), setting)


class PtFiles(Dataset[Eagle3Sample]):
    """One .pt a sample, loaded whole; with the same token ids and masks."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        store = Store.open(samples.store)
        self._masks = [store.loss_mask(sample) for sample in range(samples.count)]

    def __len__(self) -> int:
        """Count the files."""
        return self._samples.count

    @override
    def __getitem__(self, index: int) -> Eagle3Sample:
        """Load one."""
        loaded = torch.load(self._samples.file(index, ".pt"))
        states = loaded["hidden_states"]
        return {
            "sample": index,
            "input_ids": loaded["input_ids"],
            "loss_mask": torch.from_numpy(self._masks[index]),
            "aux_states": states[:, :-1].flatten(1),
            "final_state": states[:, -1],
        }


def pt(setting: Setting) -> Epochs:
    """Load with torch.load."""
    return _data_loader(PtFiles(setting.samples), setting)


def _data_loader(dataset: Dataset[Eagle3Sample], setting: Setting) -> Epochs:
    return DataLoader(
        dataset,
        batch_size=setting.batch_size,
        shuffle=True,
        num_workers=setting.workers,
        persistent_workers=setting.workers > 0,
        collate_fn=eagle3_collate,
    )


CONTENDERS: dict[str, Contender] = {
    "hsstore": Contender(stream, "store.zarr/**/*"),
    "hsstore_none": Contender(uncompressed, "uncompressed.zarr/**/*", write_uncompressed),
    "copy": Contender(Copy, "*.pt", rows=int),
    "decode": Contender(Decode, "store.zarr/**/*", rows=int),
    "hsstore_map": Contender(mapped, "store.zarr/**/*"),
    "pt": Contender(pt, "*.pt"),
    "specforge": Contender(
        trainers.SpecForge,
        "specforge/**/*.ckpt",
        partial(trainers.export, "specforge"),
        trainers.unshifted_rows,
        needs="specforge",
    ),
    "speculators": Contender(
        trainers.speculators,
        "speculators/**/*.safetensors",
        partial(trainers.export, "speculators"),
        trainers.packed_rows,
        needs="speculators",
    ),
    "modelopt": Contender(
        trainers.modelopt,
        "modelopt/samples/*.pt",
        partial(trainers.export, "modelopt"),
        trainers.unshifted_rows,
        needs="modelopt",
    ),
}


def installed() -> list[str]:
    """Return who can take part here."""
    return [name for name, contender in CONTENDERS.items() if find_spec(contender.needs)]

"""Whose loaders feed a training: each opens its data once, and then serves epoch after epoch.

Another project's loader is one more entry of `CONTENDERS`: a `Contender` that writes its own files beside
those of others and opens them. Its module may be imported when it is opened, not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from hsstore.loaders import (
    Eagle3Dataset,
    Eagle3Sample,
    Eagle3Stream,
    StreamLoader,
    eagle3_collate,
)
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to load."""

    open: Callable[[Setting], Epochs]
    files: str
    """What it reads, as a pattern inside the directory of the samples."""
    write: Callable[[Samples], None] | None = None
    """Writes its files, if `tools.reading.samples` has not, durably."""

    def stored_bytes(self, samples: Samples) -> int:
        """Bytes that it reads in an epoch."""
        files = [path for path in samples.directory.glob(self.files) if path.is_file()]
        return sum(path.stat().st_size for path in files)


def stream(setting: Setting) -> Epochs:
    """Open a store as the documentation says."""
    batches = Eagle3Stream(setting.samples.store, batch_size=setting.batch_size)
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
    "hsstore_map": Contender(mapped, "store.zarr/**/*"),
    "pt": Contender(pt, "*.pt"),
}

"""The loaders of other projects' trainers, over the files that `hsstore export` writes for them.

They are installed by `make test-trainers`, in an environment of their own: run the benchmark with its Python.
Each is opened as its trainer opens it, with its own data set, collation and sampler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from hsstore.export import Options, export_store
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.export.export import Trainer
    from tools.loading.contenders import Epochs, Setting
    from tools.reading.samples import Samples


def export(trainer: Trainer, samples: Samples) -> None:
    """Write the files of a trainer beside the store."""
    export_store(samples.store, samples.directory / trainer, Options(trainer))


def longest(samples: Samples) -> int:
    """Return the tokens of the longest sample."""
    return int(Store.open(samples.store).length.max())


class SpecForge:
    """SpecForge 0.2.0: its loader is used up by an epoch, so each makes another."""

    def __init__(self, setting: Setting) -> None:
        from specforge.algorithms.eagle3.data import build_offline_reader  # noqa: PLC0415
        from specforge.runtime.data_plane import LocalFeatureStore  # noqa: PLC0415

        self._setting = setting
        self._longest = longest(setting.samples)
        directory = str(setting.samples.directory / "specforge")
        reader = build_offline_reader(
            directory, run_id="bench", ttt_length=1, max_len=self._longest
        )
        self._refs, self._features = reader.read(), LocalFeatureStore("bench")

    def __iter__(self) -> Iterator[Any]:
        """Yield the tensors of an epoch's batches."""
        from specforge.algorithms.eagle3.data import (  # noqa: PLC0415
            build_offline_collator,
            build_offline_normalizer,
        )
        from specforge.runtime.data_plane import FeatureDataLoader  # noqa: PLC0415

        loader = FeatureDataLoader(
            self._features,
            refs=list(self._refs),
            batch_size=self._setting.batch_size,
            collate_fn=build_offline_collator(),
            per_sample_transform=build_offline_normalizer(self._longest),
            drop_last=False,
            strategy="eagle3",
            num_workers=self._setting.workers,
        )
        for batch in loader:
            yield batch.tensors


def modelopt(setting: Setting) -> Epochs:
    """Open ModelOpt 0.47.0's data set as transformers' Trainer does; it pads to the longest sample."""
    from modelopt.torch.speculative.eagle.utils import (  # noqa: PLC0415
        EagleOfflineDataCollator,
        OfflineSupervisedDataset,
    )

    files = sorted((setting.samples.directory / "modelopt/samples").glob("*.pt"))
    return DataLoader(
        OfflineSupervisedDataset(files, answer_only_loss=True),
        batch_size=setting.batch_size,
        shuffle=True,
        num_workers=setting.workers,
        persistent_workers=setting.workers > 0,
        collate_fn=EagleOfflineDataCollator(longest(setting.samples)),
    )


def speculators(setting: Setting) -> Epochs:
    """Open speculators 0.9.0's: samples are packed, up to the rows of a batch of the others."""
    from speculators.models.eagle3.data import shift_batch  # noqa: PLC0415
    from speculators.train.data import ArrowDataset  # noqa: PLC0415
    from speculators.train.dataloader import _setup_dataloader  # noqa: PLC0415

    samples = setting.samples
    rows = setting.batch_size * longest(samples)
    dataset = ArrowDataset(rows, samples.directory / "speculators", on_missing="raise")
    hidden = Store.open(samples.store).spec.model.hidden
    batches: Epochs = _setup_dataloader(
        dataset, rows, hidden, setting.workers, preprocess=shift_batch
    )
    return batches


def unshifted_rows(batch: Any) -> int:  # noqa: ANN401
    """Count the rows of a padded batch that have a next token: these trainers shift in their models."""
    mask = batch["attention_mask"]
    return int(mask.sum()) - len(mask)


def packed_rows(batch: Any) -> int:  # noqa: ANN401
    """Count the rows of a packed batch."""
    return int((batch["document_ids"] >= 0).sum())

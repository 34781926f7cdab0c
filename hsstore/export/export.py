"""Write the samples of a store for another trainer, or go on doing so.

What is written is chosen once and recorded in the directory, before the first file. Files get their names
when they are whole, so a run that was killed goes on with those that are missing. What says where the samples
are comes last.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from hsstore.consolidate.request import hash_ids
from hsstore.errors import InputError, RefusedError
from hsstore.export.beside import Beside, count_tokens
from hsstore.export.block import BlockResult, BlockTask, close_stores, write_block
from hsstore.export.choose import Choice, choose, states_hash
from hsstore.export.place import place_of, refuse_strangers
from hsstore.export.record import new_record, read_record, refuse_other
from hsstore.export.settings import Told, notes, settings
from hsstore.export.target import read_target, refuse_without_index
from hsstore.formats import FORMATS
from hsstore.formats.names import SampleNames
from hsstore.formats.source import StoreSource
from hsstore.location import RemotePath
from hsstore.report import Export, ExportRequest
from hsstore.stage import stage_for
from hsstore.store import Store
from hsstore.subset import from_ranges
from hsstore.tasks import Where, no_bars, run_tasks

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.export.place import Place
    from hsstore.export.target import Target
    from hsstore.formats import Format
    from hsstore.location import Location
    from hsstore.report import ExportRecord
    from hsstore.spec import FinalState
    from hsstore.tasks import Bars

    Int64s = npt.NDArray[np.int64]

Trainer = Literal["specforge", "speculators", "modelopt", "torchspec", "eagle"]

FILE_BYTES = 6144
"""Of each file beside its tensors: names, a header, and half a block of the file system."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is written, and how."""

    trainer: Trainer
    split: str | None = None
    ids: frozenset[bytes] | None = None
    draft_vocabulary: int | None = None
    model: Path | None = None
    """The target's folder."""
    where: Where = field(default_factory=Where)


def export_store(
    path: Location, directory: Location, options: Options, *, bars: Bars = no_bars
) -> Export:
    """Write the complete samples of a store as the files of another trainer.

    Raises
    ------
    InputError
        There is no such store, split, id or model, or nothing is to be written.
    RefusedError
        The format cannot hold what the store has, the directory is of another command, or its disk is too
        small; or another export has begun there meanwhile.
    OutputError
        The directory cannot be written; the same command goes on.
    NotExtractedError, CorruptStoreError
        A sample cannot be read any more; the message names it.
    """
    store = Store.open(path.resolve())
    directory = directory.resolve()  # workers of a cluster are in another directory
    if f"{directory}/".startswith(f"{store.location}/"):
        raise InputError(f"{directory} lies within the store")
    target = read_target(options.trainer, options.model, options.draft_vocabulary)
    if isinstance(directory, RemotePath) and options.trainer == "specforge":
        refuse_without_index(target)
    source = StoreSource(store, FORMATS[options.trainer])
    choice = choose(store, options.split, options.ids)
    request = _request(store, options, target)
    with stage_for(directory) as stage, (place := place_of(directory, stage)).owned():
        record = read_record(directory)
        resumed = record is not None
        if record is None:
            record = _begin(store, place, request, source.final, choice)
        else:
            refuse_other(directory, record.request, request)
            _refuse_other_states(store, directory, record)
        samples = from_ranges(record.samples)
        counts = count_tokens(store, samples, options.trainer, target, options.draft_vocabulary)
        if not resumed:
            place.write_record(record)
        run = _Run(store, place, options, record, target, counts)
        run.write(bars)
    return run.report(choice, resumed=resumed)


def _request(store: Store, options: Options, target: Target | None) -> ExportRequest:
    return ExportRequest(
        trainer=options.trainer,
        store=store.spec.store,
        plan_hash=store.spec.plan_hash,
        split=options.split,
        ids=hash_ids(options.ids),
        draft_vocabulary=options.draft_vocabulary,
        target_vocabulary=target.vocabulary if target else None,
    )


def _begin(
    store: Store, place: Place, request: ExportRequest, final: FinalState, choice: Choice
) -> ExportRecord:
    if not len(choice.samples):
        raise InputError(
            f"{store.location}: no sample to export ({choice.pending:,} pending, {choice.failed:,} failed): see "
            "hsstore status"
        )
    refuse_strangers(place)
    _refuse_no_space(place, bytes_needed(store, FORMATS[request.trainer], choice.samples))
    return new_record(store, request, final, choice.samples)


def _refuse_other_states(store: Store, directory: Location, record: ExportRecord) -> None:
    """Refuse to mix states: a sample may have been taken back, or extracted anew, meanwhile."""
    samples = from_ranges(record.samples)
    missing = samples[~store.completion().complete[samples]]
    if len(missing):
        name = f"sample {missing[0]} ({store.sample_id(int(missing[0]))})"
        raise RefusedError(
            f"{directory} was begun with {name}, which is not in {store.location} any more: extract it, or export "
            "into another directory"
        )
    if states_hash(store, samples) != record.states_hash:
        raise RefusedError(
            f"{store.location} has other states for some samples than when {directory} was begun: export into "
            "another directory"
        )


def bytes_needed(store: Store, form: Format, samples: Int64s) -> int:
    """Foresee the size of the files of some samples, roughly."""
    sizes = store.spec.geometry
    row = 2 * sizes.hidden if form.name == "eagle" else sizes.row_bytes
    tokens = int(store.length[samples].sum(dtype=np.int64))
    return tokens * (row + 2 * 8) + len(samples) * FILE_BYTES


def _refuse_no_space(place: Place, needed: int) -> int | None:
    """Return how many bytes are free, if there is an end, and refuse what has no room.

    Raises
    ------
    RefusedError
    """
    free = place.free_bytes()
    if free is not None and needed > free:
        raise RefusedError(
            f"{place.root} needs about {needed / 1e9:,.2f} GB more, and {free / 1e9:,.2f} GB are free there; "
            "free space, or choose another directory"
        )
    return free


class _Run:
    """One run on a directory that it owns."""

    def __init__(
        self,
        store: Store,
        place: Place,
        options: Options,
        record: ExportRecord,
        target: Target | None,
        counts: Int64s,
    ) -> None:
        self._store = store
        self._place = place
        self._options = options
        self._form = FORMATS[options.trainer]
        self._name = SampleNames(store)
        self._record = record
        self._target = target
        self._counts = counts
        self._samples = from_ranges(record.samples)
        self._sum = BlockResult()
        self._needed = 0
        self._free: int | None = None

    def write(self, bars: Bars) -> None:
        """Write what is missing, and then what says where it is."""
        missing = self._place.missing(
            [
                self._form.path(row, self._name(sample))
                for row, sample in enumerate(self._samples.tolist())
            ]
        )
        self._needed = bytes_needed(self._store, self._form, self._samples[missing])
        self._free = _refuse_no_space(self._place, self._needed)
        try:
            self._write_samples(self._tasks(missing), bars)
        finally:
            close_stores()
            self._place.clean()
        self._place.write_beside(self._write_beside)
        self._finish()

    def _write_samples(self, tasks: list[BlockTask], bars: Bars) -> None:
        zarr_json = [self._store.location / "zarr.json"]
        results = run_tasks(write_block, tasks, self._options.where, files=zarr_json)
        with bars("samples") as progress, closing(results):
            progress(0, len(self._samples))
            for _, result in results:
                self._add(result)
                progress(self._sum.written + self._sum.kept, len(self._samples))

    def _tasks(self, missing: list[int]) -> list[BlockTask]:
        is_missing = np.zeros(len(self._samples), np.bool_)
        is_missing[missing] = True
        block = np.searchsorted(self._store.layout.block_sample, self._samples, side="right")
        cuts = np.flatnonzero(np.diff(block)) + 1
        return [
            BlockTask(
                self._store.location,
                self._store.spec.store,
                self._place,
                self._options.trainer,
                tuple(self._samples[rows].tolist()),
                tuple(rows.tolist()),
                tuple(is_missing[rows].tolist()),
            )
            for rows in np.split(np.arange(len(self._samples)), cuts)
        ]

    def _add(self, result: BlockResult) -> None:
        self._sum.written += result.written
        self._sum.kept += result.kept
        self._sum.bytes_written += result.bytes_written
        self._sum.add_error(result.norm_error)

    def _write_beside(self, directory: Path) -> None:
        Beside(
            directory,
            self._store,
            self._options.trainer,
            self._samples,
            self._record.final,
            self._record.states_hash,
            self._target,
            self._options.draft_vocabulary,
            self._counts,
        ).write()

    def _finish(self) -> None:
        error = self._sum.norm_error or None
        self._record = self._record.model_copy(update={"finished": True, "norm_error": error})
        self._place.write_record(self._record)

    def report(self, choice: Choice, *, resumed: bool) -> Export:
        """Sum it all up."""
        splits = np.unique(self._store.plan_array("split")[self._samples])
        told = Told(
            self._place.root,
            self._options.trainer,
            self._record.model,
            self._record.final,
            self._target,
            self._options.draft_vocabulary,
            len(splits),
            self._record.norm_error,
        )
        later = len(choice.samples) - len(self._samples)
        more = [
            f"{later:,} samples have been completed since this export was begun, and are not in it"
        ]
        return Export(
            path=str(self._place.root),
            store=str(self._store.location),
            trainer=self._options.trainer,
            resumed=resumed,
            samples=len(self._samples),
            written=self._sum.written,
            kept=self._sum.kept,
            left_out_pending=choice.pending,
            left_out_failed=choice.failed,
            bytes_written=self._sum.bytes_written,
            bytes_needed=self._needed,
            bytes_free=self._free,
            final=self._record.final,
            norm_error=self._record.norm_error,
            notes=(*notes(told), *(more if later else [])),
            settings=settings(told),
        )

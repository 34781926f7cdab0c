"""Take files into a store: find the sample of each, then fill and commit block by block.

Nothing is kept between runs but the store itself: what is complete there is not taken again, so the same
command goes on where one was stopped.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hsstore.claims import Claims
from hsstore.errors import HsstoreError
from hsstore.formats.names import SampleNames
from hsstore.importing.files import NotTakenError
from hsstore.importing.matching import TokenIndex
from hsstore.importing.states import StateReader
from hsstore.report import Import, LeftFile, LeftKind, TakenSample
from hsstore.run_record import begin_record, end_record
from hsstore.spec import BROKEN, FINISHED, INTERRUPTED
from hsstore.subset import to_ranges
from hsstore.tasks import no_bars
from hsstore.writer import BlockWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hsstore.importing.files import Source
    from hsstore.layout import Block
    from hsstore.sample import Completion
    from hsstore.spec import RunRecord
    from hsstore.store import Store
    from hsstore.tasks import Bars

ENGINE = "import"
"""In the store's record of the run: no server has made these states."""


def import_files(
    source: Source,
    store: Store,
    *,
    created: bool,
    apply_norm: bool,
    workers: int,
    take_over: bool = False,
    stage: Path | None = None,
    bars: Bars = no_bars,
) -> Import:
    """Take what can be taken of the files into the samples that are pending.

    Parameters
    ----------
    created : bool
        The store was made for these files just now.
    apply_norm : bool
        See `StateReader`.
    workers : int
        Threads that encode.
    stage : Path, optional
        For a store under a URL: see `hsstore.shard.upload`.

    Raises
    ------
    RefusedError
        Somebody else writes the store.
    OutputError
        The store cannot be written. What is committed stays; the same command goes on.
    """
    run = _Run(source, store, apply_norm=apply_norm, stage=stage)
    run.find_samples(bars)
    run.take(workers, bars, take_over=take_over)
    return run.report(created=created)


class Candidate(NamedTuple):
    """A file that has the tokens of a sample."""

    file: str
    rows_cut: int
    """Rows of padding behind the sample."""
    is_named: bool
    """It says the sample's id: taken before others, where samples have the same tokens."""


class _Run:
    """One run over one directory."""

    def __init__(
        self, source: Source, store: Store, *, apply_norm: bool, stage: Path | None
    ) -> None:
        self._source = source
        self._stage = stage
        self._store = store
        self._name = SampleNames(store)
        self._reader = StateReader(source, store, apply_norm=apply_norm)
        self._apply_norm = apply_norm
        self._before = store.completion()
        self._candidates: dict[int, list[Candidate]] = {}
        """By pending sample: the files that have its tokens."""
        self._taken: list[TakenSample] = []
        self._left: dict[str, LeftFile] = {}
        self._masks_differ = 0
        self._id = uuid.uuid4().hex[:12]

    # --- files to samples -----------------------------------------------------------------------

    def find_samples(self, bars: Bars) -> None:
        """Read the tokens of all files."""
        index = TokenIndex(self._store)
        files = self._source.files
        with bars("files") as progress:
            for done, file in enumerate(files, 1):
                try:
                    self._find(index, file)
                except NotTakenError as error:
                    self._leave(file, error)
                progress(done, len(files))

    def _find(self, index: TokenIndex, file: str) -> None:
        tokens = self._source.tokens(file)
        samples, rows = index.find(tokens.input_ids)
        if not samples:
            detail = f"no sample of the store has its {len(tokens.input_ids)} tokens"
            raise NotTakenError(LeftKind.UNKNOWN, detail)
        cut = len(tokens.input_ids) - rows
        mask = None if tokens.loss_mask is None else tokens.loss_mask[:rows]
        if mask is not None and not np.array_equal(mask, self._store.loss_mask(samples[0])):
            self._masks_differ += 1
        pending = [sample for sample in samples if self._before.pending[sample]]
        for sample in pending:
            is_named = tokens.sample_id == self._name(sample)
            self._candidates.setdefault(sample, []).append(Candidate(file, cut, is_named))
        if not pending:
            raise self._done(samples[0], self._before, samples[0])

    def _done(self, sample: int, state: Completion, at: int) -> NotTakenError:
        """Say why the files of a sample are not wanted, whose state is at this place."""
        if state.complete[at]:
            return NotTakenError(LeftKind.COMPLETE, "its sample is in the store already", sample)
        label = self._store.spec.failure_label(int(state.failed[at]))
        return NotTakenError(LeftKind.FAILED, f"its sample failed: {label}", sample)

    def _leave(self, file: str, why: NotTakenError, sample: int | None = None) -> None:
        place = why.sample if sample is None else sample
        self._left[file] = LeftFile(file=file, kind=why.kind, detail=str(why), sample=place)

    # --- samples to blocks ----------------------------------------------------------------------

    def take(self, workers: int, bars: Bars, *, take_over: bool) -> None:
        """Fill and commit every block that has a file for a pending sample."""
        layout = self._store.layout
        blocks = sorted({layout.block_of(sample) for sample in self._candidates})
        if not blocks:
            return
        spans = sorted({layout.block(index).span for index in blocks})
        with (
            Claims(self._store, self._id, take_over=take_over) as claims,
            ThreadPoolExecutor(workers, thread_name_prefix="encode") as encoders,
        ):
            claims.take(spans)
            with self._recorded(), bars("samples") as progress:
                for index in blocks:
                    self._take_block(layout.block(index), claims, encoders)
                    progress(len(self._taken), len(self._candidates))

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        record = self._record()
        self._store.record_run(record)
        result = BROKEN
        try:
            yield
            result = FINISHED
        except KeyboardInterrupt:
            result = INTERRUPTED
            raise
        except HsstoreError as error:
            result = str(error)
            raise
        finally:
            with suppress(HsstoreError):  # no other error than the one that ended the run
                self._store.record_run(end_record(record, result))

    def _record(self) -> RunRecord:
        source = self._source
        options = {
            "source": str(source.root.resolve()),
            "format": source.form.name,
            "layers": list(source.layers),
            "final": source.hints.final,
            "apply_norm": self._apply_norm,
        }
        return begin_record(self._id, self._store.spec.model.capture_hash, ENGINE, options)

    def _take_block(self, block: Block, claims: Claims, encoders: ThreadPoolExecutor) -> None:
        # Again, now that the span is ours: another run may have been there.
        where = slice(block.samples.start, block.samples.stop)
        state = self._store.completion(where)
        store = self._store
        writer = BlockWriter(
            store.location,
            store.layout,
            store.codec,
            block,
            run=self._id,
            encoders=encoders,
            stage=self._stage,
        )
        taken: list[TakenSample] = []
        try:
            kept = (block.samples.start + np.flatnonzero(state.complete)).tolist()
            writer.copy(kept, store.payload, store.length[kept].tolist())
            for at, sample in enumerate(block.samples):
                if sample not in self._candidates:
                    continue
                if state.pending[at]:
                    taken += self._append(sample, writer)
                else:
                    self._leave_all(sample, self._done(sample, state, at))
            if taken:
                store.commit(writer, {}, partial(claims.check, block.span))
                self._taken += taken
        except BaseException:
            writer.discard()
            raise
        if not taken:
            writer.discard()

    def _leave_all(self, sample: int, why: NotTakenError) -> None:
        for file, _, _ in self._candidates[sample]:
            self._leave(file, why)

    def _append(self, sample: int, writer: BlockWriter) -> list[TakenSample]:
        """Take the first good file of a sample; compare the others with it."""
        sample_id, rows = self._name(sample), int(self._store.length[sample])
        taken: list[TakenSample] = []
        first = 0
        named_first = sorted(self._candidates[sample], key=lambda one: not one.is_named)
        for file, cut, _ in named_first:
            try:
                bits, digest = self._reader.read(file, rows)
            except NotTakenError as error:
                self._leave(file, error, sample)
                continue
            if taken:
                self._leave(file, _again(taken[0].file, same=digest == first), sample)
                continue
            first = digest
            writer.append(sample, bits, digest)
            taken.append(TakenSample(sample=sample, sample_id=sample_id, file=file, rows_cut=cut))
        return taken

    # --- the report -----------------------------------------------------------------------------

    def report(self, *, created: bool) -> Import:
        """Sum it all up."""
        store, state = self._store, self._store.completion()
        used = {one.file for one in self._taken}
        return Import(
            path=str(self._source.root),
            store=str(store.location),
            created=created,
            trainer=self._source.form.name,
            layers=self._source.layers,
            final=store.spec.model.final,
            norm_applied=self._apply_norm and self._source.hints.final != store.spec.model.final,
            samples=len(store),
            complete_before=int(self._before.complete.sum()),
            complete=int(state.complete.sum()),
            pending=int(state.pending.sum()),
            pending_samples=to_ranges(np.flatnonzero(state.pending)),
            files=len(self._source.files),
            taken=tuple(self._taken),
            left=tuple(one for file, one in sorted(self._left.items()) if file not in used),
            masks_differ=self._masks_differ,
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if cut := sum(1 for one in self._taken if one.rows_cut):
            yield f"{cut:,} files went on behind their sample with padding, which was cut off"
        if self._masks_differ:
            yield f"{self._masks_differ:,} files have another loss mask than the plan, which counts"
        if self._taken and self._made_up:
            yield (
                "the final states are not the model's: the export has made them up of those after the norm, and "
                "the size of their rows is lost"
            )
        if self._taken:
            yield (
                "that the states are of this model and of these layers was only said: hsstore verify --semantic, "
                "or --against a server, proves it"
            )

    @property
    def _made_up(self) -> bool:
        """Whether final states before the norm go into the store that an export made of those after it."""
        record, final = self._source.record, self._store.spec.model.final
        return final == "pre-norm" and record is not None and record.model.final == "post-norm"


def _again(file: str, *, same: bool) -> NotTakenError:
    if same:
        return NotTakenError(LeftKind.DUPLICATE, f"the same as {file}")
    return NotTakenError(LeftKind.CONFLICT, f"the tokens of {file}, and other states")

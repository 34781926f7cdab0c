"""Check a whole store: its plan and its files first, then every block, on Dask."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, overload

import numpy as np
from typing_extensions import override

from hsstore.errors import CorruptStoreError, InputError
from hsstore.layout import Layout
from hsstore.location import locate
from hsstore.report import BadKind
from hsstore.spec import CLEAN_ENDS
from hsstore.store import Completion, Store
from hsstore.tasks import Where, run_tasks
from hsstore.verify.block import BlockTask, RunTimes, check_block
from hsstore.verify.completion import read_span_states
from hsstore.verify.contents import check_arrays, check_contents
from hsstore.verify.finding import Finding, Ledger
from hsstore.verify.plan import check_lengths, check_metadata, check_plan, check_runs
from hsstore.verify.repair import claimed, clear_bits
from hsstore.verify.report import Found, report
from hsstore.verify.values import NORM_BINS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from hsstore.location import Location
    from hsstore.report import Verification
    from hsstore.tasks import Progress
    from hsstore.verify.completion import SpanState
    from hsstore.verify.sampling import SampleChoice


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What is checked, where, and what is done about it."""

    where: Where = field(default_factory=Where)
    sample: SampleChoice | None = None
    """Look at so many of the samples only."""
    repair: bool = False
    """Clear the bits of bad samples: without it nothing is written."""

    def __post_init__(self) -> None:
        if self.repair and self.sample is not None:
            raise InputError(
                "--repair trusts what it has read, and --sample reads a part: leave one of them away"
            )


def verify_store(
    path: str | Location, options: VerifyOptions | None = None, progress: Progress | None = None
) -> Verification:
    """Read everything in a store and report what is not as promised.

    Memory is that of a row of chunks for each worker, and less than 60 bytes for each sample of the store.

    Parameters
    ----------
    progress : callable, optional
        Called after each block with the number of blocks done and of all blocks.

    Raises
    ------
    InputError
        There is no store, or the cluster cannot be used.
    RefusedError
        To be repaired, and a run holds it.
    """
    options = options or VerifyOptions()
    path = locate(path).absolute()  # workers of a cluster have directories of their own
    try:
        store = Store.open(path)
    except CorruptStoreError as error:
        found = Found(path, None, Ledger(0))
        found.ledger.add([Finding(None, BadKind.METADATA, str(error))])
        return report(found)
    found = Found(path, store, Ledger(len(store)))
    found.ledger.add(check_metadata(store))
    found.ledger.add(check_runs(store))
    if lengths := list(check_lengths(store)):
        found.ledger.add(lengths)
        return report(found)
    with claimed(store) if options.repair else nullcontext("") as own_run:
        _check_files(store, found, own_run)
        _check_blocks(store, found, options, progress)
        repair = clear_bits(store, found.spans, found.ledger) if options.repair else None
    return report(found, repair)


def _check_files(store: Store, found: Found, own_run: str) -> None:
    """Check the plan, and what lies in the store; read the completion arrays."""
    found.ledger.add(check_arrays(store))
    found.ledger.add(check_plan(store))
    findings, found.notes = check_contents(store, own_run)
    found.ledger.add(findings)
    found.spans = read_span_states(store)
    for span in found.spans:
        found.ledger.add(span.findings)


def _check_blocks(
    store: Store, found: Found, options: VerifyOptions, progress: Progress | None
) -> None:
    chosen = None
    if options.sample is not None:
        has_states = [
            span.completion.complete | (span.completion.digest != 0) for span in found.spans
        ]
        chosen = options.sample.choose(np.concatenate(has_states))
        found.sample, found.chosen = options.sample, int(chosen.sum())
    tasks = BlockTasks(store, found.spans, chosen)
    found.norms = np.zeros((store.spec.model.slots, NORM_BINS), np.int64)
    results = run_tasks(check_block, tasks, options.where, files=[store.location / "zarr.json"])
    for done, (_, result) in enumerate(results, 1):
        found.ledger.add(result.findings)
        found.checked += result.checked
        found.tokens_checked += result.tokens_checked
        found.norms += result.norms
        if progress:
            progress(done, len(tasks))
    for span in found.spans:
        found.ledger.add(_unexplained(span, found.ledger))


class BlockTasks(Sequence[BlockTask]):
    """One task for each block with a sample to look at, made when it is needed.

    Parameters
    ----------
    chosen : bool (samples,), optional
        Samples to look at.
    """

    def __init__(
        self, store: Store, spans: Sequence[SpanState], chosen: npt.NDArray[np.bool_] | None
    ) -> None:
        self._store, self._spans, self._chosen = store, spans, chosen
        self._runs = _run_times(store)
        self._blocks = np.arange(store.layout.blocks)
        if chosen is not None:
            first = store.layout.block_sample[:-1]
            self._blocks = np.flatnonzero(np.add.reduceat(chosen, first, dtype=np.int64))

    @override
    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, number: int) -> BlockTask: ...
    @overload
    def __getitem__(self, number: slice) -> list[BlockTask]: ...
    @override
    def __getitem__(self, number: int | slice) -> BlockTask | list[BlockTask]:
        if isinstance(number, slice):
            return [self._task(int(index)) for index in self._blocks[number]]
        return self._task(int(self._blocks[number]))

    def _task(self, index: int) -> BlockTask:
        store, layout = self._store, self._store.layout
        block = layout.block(index)
        samples = slice(block.samples.start, block.samples.stop)
        span = self._spans[block.span]
        here = slice(samples.start - span.samples.start, samples.stop - span.samples.start)
        state = span.completion
        return BlockTask(
            root=store.location,
            dtype=store.spec.model.dtype,
            codec=store.spec.codec,
            layout=Layout(
                layout.geometry,
                layout.row_start[samples],
                layout.block_sample[index : index + 2] - samples.start,
                layout.block_shard[index : index + 2],
            ),
            first_sample=samples.start,
            shards=block.shards,
            length=store.length[samples],
            completion=Completion(state.complete[here], state.failed[here], state.digest[here]),
            damaged=frozenset(span.damaged),
            runs=self._runs,
            chosen=None if self._chosen is None else self._chosen[samples],
        )


def _run_times(store: Store) -> tuple[RunTimes, ...]:
    try:
        return tuple(
            RunTimes(
                datetime.fromisoformat(record.started).timestamp(), record.result in CLEAN_ENDS
            )
            for record in store.runs()
        )
    except (CorruptStoreError, ValueError):  # reported by check_runs
        return ()


def _unexplained(span: SpanState, ledger: Ledger) -> Iterator[Finding]:
    """Yield the damage of a span's completion chunks, unless a sample was named for it."""
    if not ledger.wrong_bit[span.samples.start : span.samples.stop].any():
        where = f"samples {span.samples.start} to {span.samples.stop - 1}"
        for problem in span.damaged.values():
            yield Finding(None, BadKind.COMPLETION, f"{problem} ({where})")

"""Check a whole store: its plan first, then every block, on Dask."""

from __future__ import annotations

from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from dask.base import compute
from dask.callbacks import Callback
from dask.delayed import delayed

from hsstore.errors import CorruptStoreError
from hsstore.layout import Layout
from hsstore.report import Bad, BadKind, Verification
from hsstore.spec import CLEAN_ENDS
from hsstore.store import Completion, Store
from hsstore.verify.block import BlockResult, BlockTask, RunTimes, check_block
from hsstore.verify.completion import read_span_state
from hsstore.verify.finding import Finding
from hsstore.verify.plan import check_lengths, check_metadata, check_plan, check_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from hsstore.verify.completion import SpanState

    Progress = Callable[[int, int], None]
    """Called with the blocks that are done, and with all."""

_NAMES_THE_SAMPLE = {
    BadKind.COMPLETION,
    BadKind.COMPLETE_AND_FAILED,
    BadKind.DIGEST,
    BadKind.MISSING_CHUNK,
    BadKind.MISSING_SHARD,
    BadKind.PAYLOAD_WITHOUT_BIT,
}
"""Findings that explain a damaged completion chunk: the wrong value is that of their sample."""


def verify_store(
    path: str | Path, *, workers: int | None = None, progress: Progress | None = None
) -> Verification:
    """Read everything in a store and report what is not as promised. Nothing is written.

    Memory is that of a row of chunks for each worker, and of the plan's arrays.

    Parameters
    ----------
    workers : int, optional
        Threads; by default one for each CPU.
    progress : callable, optional
        Called after each block with the number of blocks done and of all blocks.

    Raises
    ------
    InputError
        There is no store.
    """
    path = Path(path)
    try:
        store = Store.open(path)
    except CorruptStoreError as error:
        return _report(path, None, [], BlockResult([Finding(None, BadKind.METADATA, str(error))]))
    found = BlockResult([*check_metadata(store), *check_runs(store)])
    lengths = list(check_lengths(store))
    if lengths:
        return _report(path, store, [], BlockResult(found.findings + lengths))
    found.findings += check_plan(store)
    spans = [read_span_state(store, span) for span in range(store.layout.spans)]
    tasks = list(_tasks(store, spans))
    for result in _compute(tasks, workers, progress):
        found.findings += result.findings
        found.checked += result.checked
        found.tokens_checked += result.tokens_checked
    for span in spans:
        found.findings += span.findings
    for span in spans:
        found.findings += _unexplained(span, found.findings)
    return _report(path, store, spans, found)


def _tasks(store: Store, spans: list[SpanState]) -> Iterator[BlockTask]:
    layout, runs = store.layout, _run_times(store)
    for index in range(layout.blocks):
        block = layout.block(index)
        samples = slice(block.samples.start, block.samples.stop)
        span = spans[block.span]
        here = slice(samples.start - span.samples.start, samples.stop - span.samples.start)
        state = span.completion
        yield BlockTask(
            root=store.path,
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
            runs=runs,
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


def _compute(
    tasks: list[BlockTask], workers: int | None, progress: Progress | None
) -> tuple[BlockResult, ...]:
    check = delayed(check_block)
    # A task is opaque to Dask, which would otherwise look for work inside its arrays.
    work = [check(delayed(task, traverse=False)) for task in tasks]
    done = count(1)

    def report_progress(*task: object) -> None:
        if progress and isinstance(task[1], BlockResult):  # task is (key, result, ...)
            progress(next(done), len(tasks))

    callback: AbstractContextManager[object] = Callback(posttask=report_progress)  # type: ignore[no-untyped-call]
    with callback:
        results: tuple[BlockResult, ...] = compute(  # type: ignore[no-untyped-call]
            *work, scheduler="threads", num_workers=workers
        )
    return results


def _unexplained(span: SpanState, findings: list[Finding]) -> Iterator[Finding]:
    """Yield the damage of a span's completion chunks, unless a sample was named for it."""
    named = any(
        finding.sample in span.samples and finding.kind in _NAMES_THE_SAMPLE
        for finding in findings
        if finding.sample is not None
    )
    if not named:
        where = f"samples {span.samples.start} to {span.samples.stop - 1}"
        for problem in span.damaged.values():
            yield Finding(None, BadKind.COMPLETION, f"{problem} ({where})")


def _report(
    path: Path, store: Store | None, spans: list[SpanState], found: BlockResult
) -> Verification:
    row_bytes = store.spec.geometry.row_bytes if store else 0
    findings = sorted(found.findings, key=lambda f: (f.sample is not None, f.sample or 0))
    return Verification(
        path=str(path),
        ok=not findings,
        samples=len(store) if store else 0,
        checked=found.checked,
        pending=sum(int(span.completion.pending.sum()) for span in spans),
        failed=sum(
            int(((span.completion.failed != 0) & ~span.completion.complete).sum()) for span in spans
        ),
        bytes_checked=found.tokens_checked * row_bytes,
        bad=tuple(
            Bad(
                sample=finding.sample,
                sample_id=_sample_id(store, finding.sample),
                kind=finding.kind,
                detail=finding.detail,
            )
            for finding in findings
        ),
    )


def _sample_id(store: Store | None, sample: int | None) -> str | None:
    if store is None or sample is None:
        return None
    try:
        return store.sample_id(sample)
    except (CorruptStoreError, UnicodeDecodeError):  # reported with the plan
        return None

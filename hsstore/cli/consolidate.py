"""`hsstore consolidate`: stores and parts of stores into one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hsstore.cli.app import app
from hsstore.cli.options import (
    GB,
    AsJson,
    ChunkRows,
    Processes,
    Scheduler,
    ShardRows,
    SpanSamples,
    Workers,
)
from hsstore.cli.progress import progress_bar
from hsstore.errors import InputError
from hsstore.location import locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.consolidate import Filter
    from hsstore.report import Consolidation

MAX_LINES = 50
"""Samples shown to people; `--json` has all of them."""


@app.command()
def consolidate(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE... DESTINATION",
            help="Stores to read, or their URLs, then the one to write.",
        ),
    ],
    order: Annotated[
        Literal["dataset", "length", "shuffle"],
        typer.Option(help="As in the sources; by tokens, ascending; by a hash of seed and id."),
    ] = "dataset",
    seed: Annotated[int, typer.Option(min=0, help="Of --order shuffle.")] = 0,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="split=NAME|ids=FILE",
            help="Take only one split, or the ids of a file, or of its URL, one a line. Repeated: any of these "
            "splits, and of these files.",
        ),
    ] = None,
    on_conflict: Annotated[
        Literal["refuse", "first"],
        typer.Option(help="Samples with one id that differ: end, or take the first source's."),
    ] = "refuse",
    codec: Annotated[
        Literal["fast", "max", "zstd", "lz4", "none"] | None,
        typer.Option(help="How states are compressed [default: as in the first source]."),
    ] = None,
    chunk_rows: ChunkRows = None,
    shard_rows: ShardRows = None,
    span_samples: SpanSamples = None,
    link: Annotated[
        Literal["auto", "reflink", "never"],
        typer.Option(help="Unchanged shards: reflink, else hard link; reflink only; copy."),
    ] = "auto",
    verify: Annotated[bool, typer.Option(help="Verify the destination in the end.")] = True,
    take_over: Annotated[
        bool,
        typer.Option(help="Go on where a run died on another host, or before a boot."),
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Check everything, write nothing.")] = False,
    workers: Workers = None,
    processes: Processes = None,
    scheduler: Scheduler = None,
    json: AsJson = False,
) -> None:
    """Write the complete samples of stores, and of parts of stores, into one new store.

    Sources are only read; one that is being written is taken as it is at the start. The same command
    goes on where a run was stopped. Ends with 1 when samples could not be taken over, or verify finds
    something.
    """
    from hsstore.consolidate import Options, consolidate as merge
    from hsstore.tasks import Where

    if len(paths) < 2:
        raise InputError("name at least one source, and then the destination")
    options = Options(
        order=order,
        seed=seed,
        filter=_filter(where or []),
        on_conflict=on_conflict,
        codec=codec,
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        span_samples=span_samples,
        linking=link,
        verify=verify,
        dry_run=dry_run,
        take_over=take_over,
        where=Where(workers, processes, scheduler),
    )
    sources = [locate(path) for path in paths[:-1]]
    report = merge(sources, locate(paths[-1]), options, bars=progress_bar)
    if json:
        print(report.model_dump_json(indent=2))
    else:
        for line in _lines(report):
            print(line)
    if not report.ok:
        raise typer.Exit(1)


def _filter(conditions: list[str]) -> Filter:
    """Parse `--where`.

    Raises
    ------
    InputError
    """
    from hsstore.consolidate import Filter

    given: dict[str, list[str]] = {"split": [], "ids": []}
    for condition in conditions:
        name, _, value = condition.partition("=")
        if name not in given or not value:
            raise InputError(f"--where {condition}: not split=NAME or ids=FILE")
        given[name].append(value)
    return Filter.of(given["split"], [locate(file) for file in given["ids"]])


def _lines(report: Consolidation) -> Iterator[str]:
    for source in report.sources:
        yield (
            f"{source.path}: {source.complete:,} of {source.samples:,} samples complete, "
            f"{source.taken:,} taken"
        )
    if report.duplicates:
        differ = f", {report.conflicts:,} of them not equal" if report.conflicts else ""
        yield f"{report.duplicates:,} duplicates left out{differ}"
    yield from (f"note: {note}" for note in report.notes)
    for bad in report.unusable[:MAX_LINES]:
        yield f"pending: sample {bad.sample} ({bad.sample_id}) of {bad.source}: {bad.detail}"
    if len(report.unusable) > MAX_LINES:
        yield f"and {len(report.unusable) - MAX_LINES:,} more: --json shows all of them"
    if report.dry_run:
        yield _foreseen(report)
        return
    if report.verification is not None and not report.verification.ok:
        yield f"verify found {len(report.verification.bad):,} bad: run hsstore verify {report.path}"
    yield _change(report)


def _foreseen(report: Consolidation) -> str:
    return (
        f"would write {report.pending:,} samples into {report.shards:,} shards, "
        f"{report.shards_unchanged:,} of them unchanged: about {report.bytes_needed / GB:,.3f} GB"
        + ("" if report.bytes_free is None else f", {report.bytes_free / GB:,.2f} GB are free")
    )


def _change(report: Consolidation) -> str:
    """Say what has changed: files, bytes, ratio."""
    files = sum(source.files for source in report.sources)
    size = sum(source.bytes_stored for source in report.sources)
    ratio = f", ratio {report.ratio:.2f}" if report.ratio else ""
    return (
        f"{'ok' if report.ok else 'not ok'}: {_count(len(report.sources), 'store')}, "
        f"{_count(files, 'file')}, {size / GB:,.3f} GB -> 1 store, {_count(report.files, 'file')}, "
        f"{report.bytes_stored / GB:,.3f} GB{ratio}; {report.complete:,} of {report.samples:,} samples "
        f"complete, {report.shards_linked:,} of {report.shards:,} shards linked"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"

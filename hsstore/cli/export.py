"""`hsstore export`: a store's samples as the files of another trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hsstore.cli.app import app
from hsstore.cli.options import (
    GB,
    AnyLocation,
    AsJson,
    Processes,
    Scheduler,
    StoreLocation,
    Workers,
    local_path,
)
from hsstore.cli.progress import progress_bar
from hsstore.location import locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.report import Export


@app.command()
def export(
    store: StoreLocation,
    directory: Annotated[
        AnyLocation,
        typer.Argument(
            metavar="DIRECTORY",
            parser=locate,
            help="Where to write, a path or a URL; need not exist.",
        ),
    ],
    trainer: Annotated[
        Literal["specforge", "speculators", "modelopt", "torchspec", "eagle"],
        typer.Option("--format", help="Whose files."),
    ],
    split: Annotated[str | None, typer.Option(help="Only samples of this split.")] = None,
    ids: Annotated[
        AnyLocation | None,
        typer.Option(
            metavar="FILE",
            parser=locate,
            help="Only samples whose ids it has, one a line; or its URL.",
        ),
    ] = None,
    draft_vocab: Annotated[
        int | None,
        typer.Option(min=1, help="Write a draft vocabulary of so many tokens; needs --model."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            parser=local_path("--model takes"),
            help="The target's directory: its vocabulary; specforge: an index of it.",
        ),
    ] = None,
    workers: Workers = None,
    processes: Processes = None,
    scheduler: Scheduler = None,
    json: AsJson = False,
) -> None:
    """Write the complete samples of STORE as the files of another trainer.

    Says what the trainer has to be told: which layers, in its own way of counting. The same command goes on
    where a run was stopped.
    """
    from hsstore.consolidate import Filter
    from hsstore.export import Options, export_store
    from hsstore.tasks import Where

    options = Options(
        trainer=trainer,
        split=split,
        ids=Filter.of([], [ids]).ids if ids else None,
        draft_vocabulary=draft_vocab,
        model=model,
        where=Where(workers, processes, scheduler),
    )
    report = export_store(store, directory, options, bars=progress_bar)
    if json:
        print(report.model_dump_json(indent=2))
        return
    for line in _lines(report):
        print(line)


def _lines(report: Export) -> Iterator[str]:
    kept = f", {report.kept:,} were there" if report.kept else ""
    yield (
        f"{report.path}: {report.samples:,} samples for {report.trainer}; {report.written:,} written "
        f"({report.bytes_written / GB:,.3f} GB){kept}"
    )
    if report.left_out_pending or report.left_out_failed:
        yield (
            f"left out: {report.left_out_pending:,} pending, {report.left_out_failed:,} failed samples"
        )
    yield from (f"note: {note}" for note in report.notes)
    yield f"tell {report.trainer}:"
    yield from (f"  {line}" for line in report.settings)

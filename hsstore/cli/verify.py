"""`hsstore verify`: prove that a store holds what it promises."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from hsstore.cli.app import app
from hsstore.cli.options import AsJson, StorePath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hsstore.report import Verification

MAX_LINES = 50
"""Findings shown to people; `--json` has all of them."""


@app.command()
def verify(
    store: StorePath,
    *,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Threads.", show_default="one for each CPU"),
    ] = None,
    json: AsJson = False,
) -> None:
    """Read all of a store and check it: plan, shards, digests, values. Nothing is written.

    Ends with 0 when all is well, and with 1 when something is bad. Pending samples are not bad.
    """
    from hsstore.verify import verify_store

    with _progress() as progress:
        report = verify_store(store, workers=workers, progress=progress)
    if json:
        print(report.model_dump_json(indent=2))
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("blocks", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(report: Verification) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if report.bad:
        table = Table("sample", "id", "kind", "detail", box=None, pad_edge=False)
        for bad in report.bad[:MAX_LINES]:
            sample = "-" if bad.sample is None else str(bad.sample)
            table.add_row(sample, escape(bad.sample_id or "-"), bad.kind, escape(bad.detail))
        console.print(table)
    if len(report.bad) > MAX_LINES:
        console.print(f"and {len(report.bad) - MAX_LINES:,} more: --json shows all of them")
    print(_summary(report))


def _summary(report: Verification) -> str:
    verdict = "ok" if report.ok else f"{len(report.bad):,} bad"
    checked = (
        f"{report.checked:,} of {report.samples:,} samples checked"
        if report.checked
        else "no complete sample to check"
    )
    return (
        f"{verdict}: {checked} ({report.bytes_checked / 1e9:.2f} GB), "
        f"{report.pending:,} pending, {report.failed:,} failed"
    )

"""`hsstore verify`: prove that a store holds what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsstore.cli.app import app
from hsstore.cli.options import (
    ApiKeyFile,
    AsJson,
    CaCert,
    Processes,
    Scheduler,
    StoreLocation,
    Workers,
    local_path,
)

if TYPE_CHECKING:
    from rich.console import Console

    from hsstore.report import Verification

MAX_LINES = 20
"""Findings shown to people one by one; `--json` has all of them."""


@app.command()
def verify(
    store: StoreLocation,
    *,
    workers: Workers = None,
    processes: Processes = None,
    scheduler: Scheduler = None,
    sample: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Look at some samples only: 5%, or a number of them."),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Of what --sample, --semantic and --against choose at random."),
    ] = 0,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make bad samples pending, for extract to redo.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=local_path("--html writes"),
            help="Write a report for a browser too.",
        ),
    ] = None,
    semantic: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL_DIR",
            parser=local_path("--semantic takes"),
            help="Check that states belong to their tokens and to this model: its checkpoint.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask the server again for a few samples, and compare; URL=SPOOL names its spool too.",
        ),
    ] = None,
    against_samples: Annotated[int, typer.Option(min=1, help="How many.")] = 8,
    api_key_file: ApiKeyFile = None,
    ca_cert: CaCert = None,
    json: AsJson = False,
) -> None:
    """Read all of a store and check it: plan, files, shards, digests, values.

    Nothing is written without --repair. Ends with 0 when all is well, and with 1 when something is bad, also
    when it was repaired. Pending samples are not bad.
    """
    from hsstore.cli.against import ask_server
    from hsstore.cli.progress import progress_bar
    from hsstore.tasks import Where
    from hsstore.verify import SampleChoice, VerifyOptions, verify_store
    from hsstore.verify.html import check_target, write_html

    if html:
        check_target(html, store)
    options = VerifyOptions(
        where=Where(workers, processes, scheduler),
        sample=SampleChoice(sample, seed) if sample is not None else None,
        repair=repair,
    )
    asked = None
    if against is not None:  # first: it takes seconds, and the rest perhaps hours
        asked = ask_server(store, against, (api_key_file, ca_cert), against_samples, seed)
    with progress_bar("blocks") as progress:
        report = verify_store(store, options, progress)
    if asked is not None:
        report = report.with_section("against", asked)
    if semantic:
        from hsstore.cli.semantic import add_semantic

        report = add_semantic(report, store, semantic, options, seed)
    if html:
        write_html(report, html)
    if json:
        print(report.model_dump_json(indent=2))
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(1)


def _show(report: Verification) -> None:
    from rich.console import Console

    console = Console()
    for show in SECTIONS:
        show(report, console)
    print(_summary(report))


def _show_kinds(report: Verification, console: Console) -> None:
    from rich.table import Table

    if not report.kinds:
        return
    table = Table("kind", "findings", "first samples", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for count in report.kinds:
        samples = ", ".join(map(str, count.first_samples)) or "-"
        more = ", ..." if count.findings > len(count.first_samples) > 0 else ""
        table.add_row(count.kind, f"{count.findings:,}", samples + more)
    console.print(table, "")


def _show_findings(report: Verification, console: Console) -> None:
    from rich.markup import escape
    from rich.table import Table

    if not report.bad:
        return
    table = Table("sample", "id", "kind", "detail", box=None, pad_edge=False)
    for bad in report.bad[:MAX_LINES]:
        sample = "-" if bad.sample is None else str(bad.sample)
        table.add_row(sample, escape(bad.sample_id or "-"), bad.kind, escape(bad.detail))
    console.print(table)
    total = sum(count.findings for count in report.kinds)
    if total > MAX_LINES:
        all_of_them = (
            "all of them" if total == len(report.bad) else f"the first {len(report.bad):,}"
        )
        print(f"and {total - MAX_LINES:,} more: --json shows {all_of_them}")
    console.print()


def _show_advice(report: Verification, _: Console) -> None:
    for count in report.kinds:
        print(f"{count.kind}: {count.advice}")


def _show_semantic(report: Verification, console: Console) -> None:
    from hsstore.cli.semantic import show_semantic

    if report.semantic:
        show_semantic(report.semantic, console)


def _show_notes(report: Verification, _: Console) -> None:
    for note in report.notes:
        print(f"note: {note.detail}")


def _show_repair(report: Verification, _: Console) -> None:
    repair = report.repair
    if repair is None:
        return
    if repair.refused:
        print(f"nothing repaired: {repair.refused}")
    elif repair.cleared or repair.files:
        print(
            f"repaired: {repair.cleared:,} samples are pending now, and nothing else was changed; run hsstore "
            "extract to redo them"
        )
    if report.semantic and not report.semantic.ok:
        print(
            "--repair clears no bits for what --semantic found: leave those samples out, or ask for them anew"
        )
    if repair.left:
        print(f"{repair.left:,} findings are left, which no bit can mend")


def _show_against(report: Verification, console: Console) -> None:
    from hsstore.cli.against import show_against

    if report.against is not None:
        show_against(report.against, console)


SECTIONS = (
    _show_kinds,
    _show_findings,
    _show_advice,
    _show_notes,
    _show_repair,
    _show_semantic,
    _show_against,
)
"""What is shown, one after the other; each shows nothing where its part of the report is empty."""


def _summary(report: Verification) -> str:
    total = sum(count.findings for count in report.kinds)
    # What --semantic and --against found is said in their own lines.
    verdict = f"{total:,} bad" if total else "ok" if report.ok else "as bytes ok"
    checked = (
        f"{report.checked:,} of {report.samples:,} samples checked"
        if report.checked
        else "no complete sample to check"
    )
    if report.sampling:
        checked += f" ({report.sampling.asked} by seed {report.sampling.seed})"
    return (
        f"{verdict}: {checked} ({report.bytes_checked / 1e9:.2f} GB), "
        f"{report.pending:,} pending, {report.failed:,} failed"
    )

"""Ask a server for `hsstore verify --against`, and show what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hsstore.cli.options import server_and_spool

if TYPE_CHECKING:
    from rich.console import Console

    from hsstore.location import Location
    from hsstore.report import AgainstReport

WAIT_SECONDS = 30.0
"""For a server that is not there yet: it is expected to run."""
MAX_LINES = 20
"""Samples shown to people one by one; `--json` has all of them."""


def ask_server(
    store: Location, server: str, access: tuple[Path | None, Path | None], samples: int, seed: int
) -> AgainstReport:
    """Compare samples with what the server at URL, or URL=SPOOL, gives for them now.

    Parameters
    ----------
    access : (Path, Path)
        File with the API key, and PEM file with the authority of its certificate, where there are any.
    """
    from extraction.access import read_access
    from extraction.against import check_against
    from extraction.options import ExtractOptions
    from hsstore.store import Store

    url, spool = server_and_spool("--against", server)
    options = ExtractOptions(  # of the store only what is open is looked at
        store=Path(), server=url, spool=spool, server_wait_seconds=WAIT_SECONDS
    )
    return check_against(
        Store.open(store), options, read_access(*access), samples=samples, seed=seed
    )


def show_against(report: AgainstReport, console: Console) -> None:
    """Print one line for each slot, then the samples that differ or were not compared."""
    _show_slots(report, console)
    _show_samples(report, console)
    golden = "" if report.golden is None else f"; golden prefix {report.golden:.2%}"
    print(
        f"against: {'ok' if report.ok else 'differs'}: {report.compared:,} of {len(report.samples):,} "
        f"samples compared with {report.server} ({report.engine}), {report.bit_equal:,} bit-equal"
        f"{golden}; asked twice, the server differs by {report.floor:.2%}"
    )


def _show_slots(report: AgainstReport, console: Console) -> None:
    from rich.table import Table

    columns = ("slot", "equal bits", "median", "mean", "worst", "cosine", "least", "tolerance", "")
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for slot in report.slots:
        differences = [slot.median, slot.mean, slot.worst]
        table.add_row(
            slot.name,
            f"{slot.equal:.2%}",
            *[f"{value:.2%}" for value in differences],
            f"{slot.cosine:.5f}",
            f"{slot.least_cosine:.5f}",
            f"{slot.tolerance:.2%}",
            slot.verdict,
        )
    console.print(table)


def _show_samples(report: AgainstReport, console: Console) -> None:
    from rich.markup import escape
    from rich.table import Table

    odd = [one for one in report.samples if one.detail]
    if not odd:
        return
    table = Table("sample", "id", "verdict", "detail", box=None, pad_edge=False)
    for one in odd[:MAX_LINES]:
        table.add_row(str(one.sample), escape(one.sample_id), one.verdict, escape(one.detail))
    console.print(table)
    if len(odd) > MAX_LINES:
        print(f"and {len(odd) - MAX_LINES:,} more: --json shows all of them")

"""`hsstore verify --semantic`: run the check, and show what it found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from hsstore.cli.progress import progress_bar
from hsstore.errors import CorruptStoreError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from hsstore.location import Location
    from hsstore.report import SemanticReport, Verification
    from hsstore.verify import VerifyOptions

MAX_LINES = 20
"""Findings shown to people one by one; `--json` has more."""


def add_semantic(
    report: Verification, store: Location, model_dir: Path, options: VerifyOptions, seed: int
) -> Verification:
    """Check the meaning of the states as well, and return the report with it.

    A store that cannot be opened, or whose plan cannot be read, is reported as such already.
    """
    from hsstore.semantic import check_semantics
    from hsstore.store import Store

    try:
        samples = None
        if options.sample is not None:
            samples = np.flatnonzero(options.sample.choose(Store.open(store).completion().complete))
        with progress_bar("samples, meaning") as progress:
            found = check_semantics(
                store, model_dir, options.where, samples=samples, seed=seed, progress=progress
            )
    except CorruptStoreError as error:
        print(f"--semantic: nothing checked: {error}", file=sys.stderr)
        return report
    return report.with_section("semantic", found)


def show_semantic(report: SemanticReport, console: Console) -> None:
    """Print the findings, the checks with their limits, and what was not checked."""
    _show_findings(report, console)
    _show_checks(report, console)
    total = sum(report.by_kind.values())
    verdict = "ok" if report.ok else f"{total:,} bad"
    unchecked = list(dict.fromkeys(check.name for check in report.checks if not check.checked))
    print(
        f"semantic: {verdict}: {report.samples:,} samples, {report.tokens:,} tokens checked against "
        f"{report.model_dir}" + (f"; not checked: {', '.join(unchecked)}" if unchecked else "")
    )


def _show_findings(report: SemanticReport, console: Console) -> None:
    from rich.markup import escape
    from rich.table import Table

    if not report.bad:
        return
    table = Table("sample", "id", "kind", "slots", "detail", box=None, pad_edge=False)
    for bad in report.bad[:MAX_LINES]:
        sample = "store" if bad.sample is None else str(bad.sample)
        slots = ", ".join(map(str, bad.slots))
        table.add_row(sample, escape(bad.sample_id or "-"), bad.kind, slots, escape(bad.detail))
    console.print(table)
    if (total := sum(report.by_kind.values())) > MAX_LINES:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in report.by_kind.items())
        print(
            f"and {total - MAX_LINES:,} more ({counts}): --json lists the first {len(report.bad):,}"
        )
    console.print()


def _show_checks(report: SemanticReport, console: Console) -> None:
    from rich.table import Table

    table = Table("check", "slots", "limits", "sees", "cannot see", box=None, pad_edge=False)
    for name in dict.fromkeys(check.name for check in report.checks if check.checked):
        here = [check for check in report.checks if check.checked and check.name == name]
        slots = ", ".join("-" if check.slot is None else str(check.slot) for check in here)
        limits = ", ".join(f"{check.limit:.2g}" for check in here)
        table.add_row(name, slots, limits, here[0].sees, here[0].blind)
    console.print(table)
    for check in report.checks:
        if not check.checked:
            slot = "" if check.slot is None else f", slot {check.slot}"
            print(f"{check.name}{slot}: {check.why}")
    console.print()

"""`hsstore doctor`: find out why a run stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hsstore.cli.app import app
from hsstore.cli.options import AsJson, StoreLocation
from hsstore.verdict import Verdict

if TYPE_CHECKING:
    from hsstore.report import Diagnosis

_CODES = ", ".join(f"{verdict.exit_code} {verdict}" for verdict in Verdict)


@app.command(epilog=f"Exit codes: {_CODES}. Below 20 there is nothing to do.")
def doctor(
    store: StoreLocation,
    *,
    json: AsJson = False,
    stalled_after: Annotated[
        float, typer.Option(help="Seconds without progress that count as standing still.")
    ] = 60.0,
    timeout: Annotated[
        float, typer.Option(help="Seconds that a disk, an object store or a server has to answer.")
    ] = 5.0,
) -> None:
    """Find out why a run on STORE stands still: one verdict, evidence, advice, a kill's cost.

    Looks at its process and what each thread waits in, its progress, its spool, its server and
    the disk, and changes nothing. Works from another terminal, on a dead run, and while the disk or the
    object store hangs. What may not be looked at (another user's process) is said.
    """
    from extraction.diagnosis.examine import collect_all
    from extraction.diagnosis.judge import judge

    evidence = collect_all(store, deadline_seconds=timeout)
    diagnosis = judge(evidence, stalled_seconds=stalled_after)
    if json:
        print(diagnosis.model_dump_json(indent=2))
    else:
        _show(diagnosis)
    raise typer.Exit(diagnosis.verdict.exit_code)


def _show(diagnosis: Diagnosis) -> None:
    print(f"{diagnosis.verdict}: {diagnosis.summary}\n")
    for line in diagnosis.evidence:
        print(f"  - {line}")
    print(f"\nadvice: {diagnosis.advice}")
    print(f"a kill now: {diagnosis.kill_cost.text}")

"""`hsstore status`: how the runs on a store are doing, from another terminal or another host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from hsstore.cli.app import app
from hsstore.cli.options import AsJson, StoreLocation
from hsstore.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from hsstore.report import RunReport, StallReport, StatusReport, TotalReport

WATCH_SECONDS = 2.0
FRESH_SECONDS = 5.0
"""A live run whose page is older hangs, or is being stopped."""


@app.command()
def status(
    store: StoreLocation,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again; with --json a line each.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show the runs on a store: progress, rates, stages, last errors, last stall.

    Answers also while the store's file system hangs, or its object store is away. Runs of other hosts are shown from the
    copies beside the store, with their age; under a URL these are the signs of life that runs at work put there.
    """
    from extraction.status_report import StatusReader

    reader = StatusReader(store)
    if watch and json:
        _print_lines(reader.read)
    if watch:
        _watch(reader.read)
        return
    report = reader.read()
    _refuse_unknown(report)
    if json:
        print(report.model_dump_json(indent=2))
    else:
        _console().print(_text(report))


def _print_lines(read: Callable[[], StatusReport]) -> NoReturn:
    """Print a document a line, until somebody ends it."""
    try:
        while True:
            report = read()
            _refuse_unknown(report)
            print(report.model_dump_json(), flush=True)
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _watch(read: Callable[[], StatusReport]) -> None:
    from contextlib import nullcontext

    from rich.live import Live

    console = _console()
    report = read()
    _refuse_unknown(report)
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with live or nullcontext():
        try:
            while True:
                if live is not None:
                    live.update(_text(report), refresh=True)
                else:
                    console.print(_text(report))
                time.sleep(WATCH_SECONDS)
                report = read()
        except KeyboardInterrupt:  # how a person ends it
            return


def _console() -> Console:
    """Return the terminal; elsewhere paths are not broken into pieces."""
    import sys

    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=400)


def _refuse_unknown(report: StatusReport) -> None:
    if report.runs or report.samples is not None:
        return
    if "no answer" in report.unread:
        raise OutputError(
            f"{report.store}: its file system gave {report.unread}, and no run of this machine is "
            "known; run `hsstore doctor` on the store"
        )
    why = report.unread.removeprefix(f"{report.store}: ")
    raise InputError(f"{report.store}: no run is known, and there is no store: {why}")


def _text(report: StatusReport) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = [Text(line) for line in _store_lines(report)]
    together = len(report.runs) > 1 and any(run.worker for run in report.runs)
    if together:
        lines.append(_workers_table(report.runs))
    for run in report.runs:
        if together and run.source == "copy":  # its line in the table says enough
            continue
        lines += [Text(""), _run_table(run)]
        if run.stages:
            lines.append(_stage_table(run))
        if run.stall is not None:
            lines += [Text(line) for line in _stall_lines(run.stall)]
    return Group(*lines)


def _store_lines(report: StatusReport) -> Iterator[str]:
    yield f"store {report.store}"
    if report.samples is not None:
        failed = f", {report.failed:,} failed" if report.failed else ""
        yield f"  {report.complete:,} of {report.samples:,} samples complete{failed}"
    if report.total is not None and report.total.runs > 1:
        yield f"  {_together(report.total)}"
    if report.unread:
        yield f"  the store's own files were not read: {report.unread}"
    if not report.runs:
        yield "  no run is going on here, and none has left a copy of its status"


def _together(total: TotalReport) -> str:
    return (
        f"{total.runs} runs at work: {total.complete_now:,} samples by them, "
        f"{total.tokens_per_second_1min:,.0f} tokens/s over 1 min, "
        f"{total.tokens_per_second_15min:,.0f} over 15 min; "
        f"{total.bytes_per_second_1min / 1e6:,.1f} MB/s; ETA {_duration(total.eta_seconds)}"
    )


def _workers_table(runs: Sequence[RunReport]) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("worker", "host", "samples", "tokens/s", "phase", "seen"):
        right = column in {"samples", "tokens/s"}
        table.add_column(column, justify="right" if right else "left")
    for run in runs:
        rate = f"{run.tokens_per_second_1min:,.0f}"
        name = run.worker or run.run or "(starting)"
        cells = (name, run.host, f"{run.complete_now:,}", rate, run.phase, _seen(run))
        table.add_row(*map(escape, cells))
    return table


def _run_table(run: RunReport) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in _run_lines(run):
        table.add_row(f"[bold]{name}[/]", escape(value))
    return table


def _run_lines(run: RunReport) -> Iterator[tuple[str, str]]:
    worker = f"worker {run.worker}, " if run.worker else ""
    name = f"{worker}{run.run or '(starting)'}"
    yield "run", f"{name} on {run.host or 'this host'}, pid {run.pid}, {run.phase}"
    yield "seen", _seen(run)
    if run.samples:
        failed = f", {run.failed:,} failed" if run.failed else ""
        share = f"{run.complete / run.samples:.1%}"
        yield "samples", f"{run.complete:,} of {run.samples:,} complete ({share}){failed}"
        yield "tokens", f"{run.tokens_now:,} by this run, {run.tokens_left:,} left"
        yield (
            "rate",
            (
                f"{run.tokens_per_second_1min:,.0f} tokens/s over 1 min, "
                f"{run.tokens_per_second_15min:,.0f} over 15 min; "
                f"{run.bytes_per_second_1min / 1e6:,.1f} MB/s; ETA {_duration(run.eta_seconds)}"
            ),
        )
    if run.exit_code is None:
        beat = "no heartbeat of the server seen yet"
        if run.heartbeat_age_seconds is not None:
            beat = f"server's heartbeat {_duration(run.heartbeat_age_seconds)} ago"
        yield "progress", f"{_duration(run.progress_age_seconds)} ago; {beat}"
        yield "in flight", f"{run.in_flight} of {run.in_flight_cap}, {run.open_blocks} open blocks"
        where = run.spool if len(run.servers) < 2 else f"{len(run.servers)} spools"
        yield "spool", f"{where}: {_fill(run)}"
    yield from _server_lines(run)
    for error in run.last_errors:
        yield "error", error
    if run.message:
        yield "said", run.message


def _server_lines(run: RunReport) -> Iterator[tuple[str, str]]:
    if len(run.servers) < 2:
        yield "server", run.server
        return
    for one in run.servers:
        why = f": {one.message}" if one.message else ""
        asked = f"{one.in_flight} of {one.in_flight_cap} in flight, {one.tokens:,} tokens"
        yield "server", f"{one.url}, {one.state}, {asked}{why}"


def _seen(run: RunReport) -> str:
    age = f"{_duration(run.age_seconds)} ago"
    if run.source == "copy":
        age = f"in the copy beside the store, {age}"
    if run.exit_code is not None:
        return f"{age}; it has ended with {run.exit_code}"
    if run.source == "dead":
        return f"{age}; it was killed, nobody works on the store for it"
    if run.source == "copy":
        from extraction.diagnosis.copies import ALIVE_SECONDS

        silent = f"{age}: it is dead, stands still, or cannot write beside the store"
        return age if run.age_seconds < ALIVE_SECONDS else silent
    return age if run.age_seconds < FRESH_SECONDS else f"{age}: the worker says nothing any more"


def _fill(run: RunReport) -> str:
    used, budget = run.spool_used_bytes / 1e9, run.spool_budget_bytes / 1e9
    share = f" ({used / budget:.0%})" if budget else ""
    return f"{used:,.2f} of {budget:,.2f} GB{share}"


def _stage_table(run: RunReport) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("stage", "items", "oldest", "which"):
        table.add_column(column, justify="right" if column in {"items", "oldest"} else "left")
    for stage in run.stages:
        age = _duration(stage.oldest_age_seconds)
        table.add_row(stage.name, f"{stage.items:,}", age, Text(stage.detail, overflow="fold"))
    return table


def _stall_lines(stall: StallReport) -> Iterator[str]:
    state = "recovered after" if stall.recovered else "stalled for"
    seconds = stall.stalled_seconds + (0 if stall.recovered else stall.reported_age_seconds)
    aborted = "; the worker was killed" if stall.aborted else ""
    why = f": {stall.summary}" if stall.summary and not stall.recovered else ""
    yield f"{state} {_duration(seconds)}: {stall.verdict}{why}{aborted}"
    if stall.recovered:
        return
    yield from (f"  {line}" for line in stall.evidence)
    yield f"  what to do: {stall.advice}"
    yield f"  a kill would cost: {stall.kill_cost}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if hours < 1:
        return f"{minutes:.0f} min"
    return f"{hours:.1f} h" if days < 2 else f"{days:.1f} days"

"""`hsstore info`: what a store holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hsstore.cli.app import app
from hsstore.cli.options import AsJson, StoreLocation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.report import Info


@app.command()
def info(store: StoreLocation, *, json: AsJson = False) -> None:
    """Show what a store holds: samples, tokens, bytes, model, runs."""
    import hsstore
    from hsstore.info import store_info

    report = store_info(hsstore.open(store))
    if json:
        print(report.model_dump_json(indent=2))
    else:
        _show(report)


def _show(report: Info) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _lines(report):
        table.add_row(f"[bold]{name}[/]", escape(value))
    Console().print(table)


def _lines(report: Info) -> Iterator[tuple[str, str]]:
    layers = ", ".join(map(str, report.layers))
    final = "no final state" if report.final == "none" else f"final state {report.final}"
    ratio = f", ratio {report.ratio:.2f}" if report.ratio else ""
    failed = ", ".join(f"{reason} {n:,}" for reason, n in report.failed_by_reason.items())
    yield "store", report.path
    yield "samples", f"{report.complete:,} of {report.samples:,} complete"
    yield "pending", f"{report.pending:,}"
    yield "failed", f"{report.failed:,}" + (f" ({failed})" if failed else "")
    yield "tokens", f"{report.tokens_complete:,} of {report.tokens:,} complete"
    yield "bytes", f"{report.bytes_raw:,} raw, {report.bytes_stored:,} stored{ratio}"
    yield "files", f"{report.files:,}"
    yield "layout", f"{report.blocks:,} blocks, {report.shards:,} shards, {report.spans:,} spans"
    yield "model", report.model
    yield "states", f"{report.slots} slots of {report.hidden} {report.dtype}"
    yield "layers", f"{layers or 'none'}; {final}"
    yield "codec", " ".join([report.codec["name"], *_settings(report.codec)])
    yield "splits", ", ".join(report.splits)
    yield "created", f"{report.created} by {report.created_by}"
    for run in report.runs:
        result = run.result or "not ended: running, or killed"
        yield "run", f"{run.run} from {run.started} on {run.host}, {run.engine}: {result}"


def _settings(codec: dict[str, object]) -> list[str]:
    configuration = codec.get("configuration")
    settings = configuration.items() if isinstance(configuration, dict) else ()
    return [f"{name}={value}" for name, value in settings]

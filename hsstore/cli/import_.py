"""`hsstore import`: files of other projects into a store."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hsstore.cli.app import app
from hsstore.cli.options import (
    AnyLocation,
    AsJson,
    ChatTemplateKwargs,
    ChunkRows,
    Codec,
    DataFiles,
    Limit,
    MaxTokens,
    MinLossTokens,
    ShardRows,
    SkipBad,
    SpanSamples,
    TooLong,
    TrainOn,
    TrustRemoteCode,
    data_options,
    layer_list,
    local_path,
    server_and_spool,
)
from hsstore.cli.progress import progress_bar
from hsstore.location import locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.report import Import

MAX_LINES = 50
"""Files shown to people; `--json` has all of them."""


@app.command("import")
def import_(
    source: Annotated[
        AnyLocation,
        typer.Argument(
            metavar="SOURCE", parser=locate, help="The directory with the files, or its URL."
        ),
    ],
    store: Annotated[
        AnyLocation,
        typer.Argument(
            metavar="STORE",
            parser=locate,
            help="The store, a path or a URL; it is created if it is not there.",
        ),
    ],
    trainer: Annotated[
        Literal["specforge", "speculators", "modelopt", "torchspec", "eagle", "seed"],
        typer.Option("--format", help="Whose files; seed: home-made .pt files."),
    ],
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers that the files hold, such as 1,14,26: outputs of 0-based decoder layers. No file says."
        ),
    ] = None,
    final: Annotated[
        Literal["post-norm", "pre-norm", "none"] | None,
        typer.Option(help="The files' final state: after the final norm, before it, or none."),
    ] = None,
    apply_norm: Annotated[
        bool,
        typer.Option("--apply-norm", help="Normalise final states from before the norm."),
    ] = False,
    data: DataFiles = None,
    model: Annotated[
        Path | None,
        typer.Option(
            parser=local_path("--model takes"),
            help="New store: the model's directory; with --data, its tokenizer.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="New store: for this server, URL or URL=SPOOL, which is running."),
    ] = None,
    engine: Annotated[
        Literal["embedded", "sglang"],
        typer.Option(help="New store, without --server: which `hsstore serve` is to go on."),
    ] = "embedded",
    compute_dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        typer.Option(help="New store: what that server computes in [default: as it would here]."),
    ] = None,
    train_on: TrainOn = "all",
    max_tokens: MaxTokens = None,
    too_long: TooLong = "truncate",
    min_loss_tokens: MinLossTokens = 1,
    limit: Limit = None,
    skip_bad: SkipBad = False,
    chat_template_kwargs: ChatTemplateKwargs = "{}",
    trust_remote_code: TrustRemoteCode = False,
    chunk_rows: ChunkRows = None,
    shard_rows: ShardRows = None,
    span_samples: SpanSamples = None,
    codec: Codec = "fast",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads that encode.", show_default="all CPUs")
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(help="Take the store from a run that died on another host, or before a boot."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Take the states of another project's files into STORE, as far as they go; `extract` does the rest.

    A file's sample is found by its tokens. A new store is planned from --data, or from the files' own tokens.
    Run again to go on. Ends with 1 when there were files that could not be used.
    """
    from extraction.importing import ImportOptions, run_import
    from hsstore.create import LayoutOptions

    options = ImportOptions(
        source=source,
        store=store,
        trainer=trainer,
        layers=layer_list(layers),
        final=final,
        apply_norm=apply_norm,
        data=data_options(
            data,
            chat_template_kwargs,
            train_on=train_on,
            max_tokens=max_tokens,
            too_long=too_long,
            min_loss_tokens=min_loss_tokens,
            limit=limit,
            skip_bad=skip_bad,
            trust_remote_code=trust_remote_code,
        ),
        model=model,
        spool=server_and_spool("--server", server)[1] if server else None,
        engine=engine,
        compute_dtype=compute_dtype,
        sizes=LayoutOptions(chunk_rows, shard_rows, span_samples, codec),
        workers=workers or len(os.sched_getaffinity(0)),
        take_over=take_over,
    )
    report = run_import(options, progress_bar)
    if json:
        print(report.model_dump_json(indent=2))
    else:
        for line in _lines(report):
            print(line)
    if not report.ok:
        raise typer.Exit(1)


def _lines(report: Import) -> Iterator[str]:
    new = "created, " if report.created else ""
    yield (
        f"{report.path}: {report.files:,} {report.trainer} files; {report.store}: {new}"
        f"{len(report.taken):,} samples taken"
    )
    yield from (f"note: {note}" for note in report.notes)
    for one in report.left[:MAX_LINES]:
        where = "" if one.sample is None else f" (sample {one.sample})"
        yield f"{one.kind}: {one.file}{where}: {one.detail}"
    if len(report.left) > MAX_LINES:
        yield f"and {len(report.left) - MAX_LINES:,} more: --json shows all of them"
    counts = Counter(one.kind for one in report.left)
    left = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    yield f"files not taken: {left or 'none'}"
    rest = f"; {report.pending:,} pending" if report.pending else ""
    if rest and report.final == "post-norm":  # as all servers give it
        rest += ": hsstore extract does the rest"
    yield f"{report.complete:,} of {report.samples:,} samples complete{rest}"

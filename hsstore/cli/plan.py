"""`hsstore plan`: what a run would need, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hsstore.cli.app import app
from hsstore.cli.options import (
    GB,
    AnyLocation,
    ChatTemplateKwargs,
    ChunkRows,
    Codec,
    DataFiles,
    Layers,
    Limit,
    MaxTokens,
    MemoryGb,
    MinLossTokens,
    ShardRows,
    SkipBad,
    SpanSamples,
    StageDir,
    TooLong,
    TrainOn,
    TrustRemoteCode,
    data_options,
    layer_list,
    local_path,
)
from hsstore.errors import InputError
from hsstore.location import locate


@app.command()
def plan(
    data: DataFiles = None,
    model: Annotated[
        Path | None,
        typer.Option(
            parser=local_path("--model takes"),
            help="The model's directory: configuration and tokenizer.",
        ),
    ] = None,
    store: Annotated[
        AnyLocation,
        typer.Option(
            metavar="STORE", parser=locate, help="Where the store would be, a path or a URL."
        ),
    ] = Path("states.zarr"),
    stage: StageDir = None,
    layers: Layers = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="Element type.")
    ] = "bfloat16",
    tokens_per_second: Annotated[
        float, typer.Option(help="Speed of the server, to estimate the hours.")
    ] = 10_000,
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
    memory_gb: MemoryGb = 2.0,
) -> None:
    """Say what extracting --data would take: samples, bytes, files, hours, free space.

    Needs no server and writes nothing; a bucket is asked once whether it answers. Exit code 3 when it
    cannot work on this machine.
    """
    from extraction.plan import plan_run
    from hsstore.create import LayoutOptions

    if not data or model is None:
        raise InputError("--data and --model are needed")
    needs, report = plan_run(
        store,
        stage,
        data_options(
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
        model,
        layers=layer_list(layers),
        dtype=dtype,
        sizes=LayoutOptions(chunk_rows, shard_rows, span_samples, codec),
        memory_bytes=int(memory_gb * GB),
    )
    hours = needs.tokens / tokens_per_second / 3600
    print(report.summary())
    for line in [*needs.lines(), f"{hours:,.2f} hours at {tokens_per_second:,.0f} tokens/s"]:
        print(line)
    needs.refuse_problems()

"""`hsstore extract`: create a store if it is new, fill it, resume it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hsstore.cli.app import app
from hsstore.cli.options import (
    GB,
    ApiKeyFile,
    CaCert,
    ChatTemplateKwargs,
    ChunkRows,
    Codec,
    DataFiles,
    Limit,
    MaxTokens,
    MemoryGb,
    MinLossTokens,
    RelayTokenFile,
    ShardRows,
    SkipBad,
    SpanSamples,
    StageDir,
    StoreLocation,
    TooLong,
    TrainOn,
    TrustRemoteCode,
    data_options,
    local_path,
    server_addresses,
    worker_number,
)

ModelDir = Annotated[
    Path | None,
    typer.Option(
        "--model", parser=local_path("--model takes"), help="The model's directory: tokenizer."
    ),
]


@app.command()
def extract(
    store: StoreLocation,
    server: Annotated[
        list[str] | None,
        typer.Option(
            help="URL of a server; URL=SPOOL names its spool too, or the URL of the relay before it. "
            "May be repeated: they share the work. Proxies are never used."
        ),
    ] = None,
    servers_file: Annotated[
        Path | None,
        typer.Option(
            parser=local_path("--servers-file reads"),
            help="File with more servers, one URL[=SPOOL] a line; read again while the run goes on.",
        ),
    ] = None,
    data: DataFiles = None,
    model: ModelDir = None,
    spool: Annotated[
        Path | None,
        typer.Option(
            parser=local_path("--spool takes"),
            help="The server's spool [default: by its port]; where a relay is named, its mirror here.",
        ),
    ] = None,
    api_key_file: ApiKeyFile = None,
    ca_cert: CaCert = None,
    relay_token_file: RelayTokenFile = None,
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
    spool_budget_gb: Annotated[
        float | None,
        typer.Option(
            help="Shared memory to use for each server [default: half of what is free, for all]."
        ),
    ] = None,
    memory_gb: MemoryGb = 2.0,
    stage: StageDir = None,
    max_in_flight: Annotated[int, typer.Option(help="Requests at once, to each server.")] = 32,
    max_failures: Annotated[
        float, typer.Option(help="Share of the samples that may fail before the run stops.")
    ] = 0.01,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds without a heartbeat until a request expires.")
    ] = 120.0,
    server_wait: Annotated[
        float, typer.Option(help="Seconds to wait when no server is there.")
    ] = 600.0,
    retry_failed: Annotated[bool, typer.Option(help="Ask for failed samples again.")] = False,
    skip_too_large: Annotated[
        bool, typer.Option(help="Mark samples that fit no budget as failed, and go on.")
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(help="Take the store from a run that died on another host, or before a boot."),
    ] = False,
    worker: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Work as one of several on the same store, such as 0/2 and 1/2; each with a server.",
        ),
    ] = None,
    canary: Annotated[
        bool,
        typer.Option(
            help="Ask for a few prefixes alone and within batches, and stop when they differ."
        ),
    ] = True,
    dry_run: Annotated[bool, typer.Option(help="Check everything, write nothing.")] = False,
    grace: Annotated[float, typer.Option(help="Seconds to end in after a signal.")] = 20.0,
    stall_after: Annotated[
        float, typer.Option(min=0.1, help="Seconds without progress until a stall is reported.")
    ] = 60.0,
    stall_abort: Annotated[
        float, typer.Option(min=0.0, help="Seconds without progress until the run ends; 0: never.")
    ] = 900.0,
    restart: Annotated[
        int, typer.Option(min=0, help="Start again so often after a stall or an interruption.")
    ] = 0,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics on this port.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Address for the metrics; 0.0.0.0: all.")
    ] = "127.0.0.1",
) -> None:
    """Create STORE from --data if it is new, then fill it from servers; run again to resume.

    Exit codes: 0 complete; 1 finished, some samples failed; 2 wrong input; 3 refused (another
    model, data or owner); 74 output error; 75 stalled, interrupted, or no answer of an object store: run
    again to continue.
    """
    from extraction.options import ExtractOptions
    from extraction.supervisor import supervise

    servers = server_addresses(server, spool, servers_file)
    options = ExtractOptions(
        store=store,
        stage=stage.absolute() if stage else None,
        **servers,
        api_key_file=api_key_file,
        ca_cert=ca_cert,
        relay_token_file=relay_token_file,
        canary=canary,
        model=model,
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
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        span_samples=span_samples,
        codec=codec,
        spool_budget_bytes=int(spool_budget_gb * GB) if spool_budget_gb else None,
        memory_bytes=int(memory_gb * GB),
        max_in_flight=max_in_flight,
        max_failures=max_failures,
        request_timeout_seconds=request_timeout,
        server_wait_seconds=server_wait,
        retry_failed=retry_failed,
        skip_too_large=skip_too_large,
        take_over=take_over,
        worker=worker_number(worker),
        dry_run=dry_run,
        grace_seconds=grace,
        stall_after_seconds=stall_after,
        stall_abort_seconds=stall_abort,
        restarts=restart,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
    )
    raise typer.Exit(supervise(options))

"""Arguments and options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hsstore.errors import InputError

if TYPE_CHECKING:
    from extraction.options import DataOptions

# `parser`: the usual conversion of a path looks at it, and would wait for a disk that hangs.
StorePath = Annotated[
    Path, typer.Argument(metavar="STORE", parser=Path, help="The store's directory.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document, as schemas/ describes it.")
]

Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="Threads; with --processes, of each process.", show_default="all CPUs"
    ),
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="Use so many worker processes on this machine.")
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Use a dask.distributed cluster, such as tcp://host:8786."
    ),
]

DataFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        help="JSONL (.gz, .zst) or Parquet files, or save_to_disk folders; may be repeated.",
    ),
]
TrainOn = Annotated[
    Literal["all", "last"], typer.Option(help="Assistant turns that are supervised.")
]
MaxTokens = Annotated[int | None, typer.Option(help="Longest sample, in tokens.")]
TooLong = Annotated[Literal["truncate", "skip"], typer.Option(help="What to do with a longer one.")]
MinLossTokens = Annotated[int, typer.Option(help="Drop samples with fewer supervised tokens.")]
Limit = Annotated[int | None, typer.Option(help="Take so many samples at most.")]
SkipBad = Annotated[bool, typer.Option(help="Count bad records and go on.")]
ChatTemplateKwargs = Annotated[str, typer.Option(help="JSON object passed to the chat template.")]
TrustRemoteCode = Annotated[
    bool, typer.Option(help="Allow a tokenizer that is Python code in the model's directory.")
]

ChunkRows = Annotated[int | None, typer.Option(help="Rows a chunk [default: by width].")]
ShardRows = Annotated[int | None, typer.Option(help="Rows a shard [default: by size].")]
SpanSamples = Annotated[int | None, typer.Option(help="Samples a span [default: by size].")]
# The names in hsstore.codec, whose import would slow down --help.
Codec = Annotated[
    Literal["fast", "max", "zstd", "lz4", "none"],
    typer.Option(
        help="How states are compressed; max: 5 % smaller, slower, and other Zarr readers need "
        "hsstore's filter for it."
    ),
]
MemoryGb = Annotated[float, typer.Option(help="Memory for dumps being encoded.")]
Layers = Annotated[
    str | None,
    typer.Option(help="Layers to capture, such as 1,14,26 (0-based outputs) [default: EAGLE-3's]."),
]

ApiKeyFile = Annotated[
    Path | None, typer.Option(help="File with the server's API key [default: HSSTORE_API_KEY].")
]
CaCert = Annotated[
    Path | None,
    typer.Option(help="PEM file with the private authority that signed an https server's."),
]

GB = 1e9


def data_options(
    files: list[Path] | None,
    chat_template_kwargs: str,
    **options: Any,  # noqa: ANN401  # the fields of DataOptions
) -> DataOptions:
    """Collect what says which samples are taken.

    Raises
    ------
    InputError
        The template's arguments are not a JSON object.
    """
    from extraction.options import DataOptions

    arguments = _json_object("--chat-template-kwargs", chat_template_kwargs)
    return DataOptions(files=tuple(files or ()), chat_template_kwargs=arguments, **options)


def layer_list(text: str | None) -> tuple[int, ...] | None:
    """Parse `--layers`.

    Raises
    ------
    InputError
    """
    if text is None:
        return None
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError:
        raise InputError(f"--layers {text}: not a list such as 1,14,26") from None


def server_and_spool(option: str, server: str, spool: Path | None = None) -> tuple[str, Path]:
    """Split URL=SPOOL, and fill in the default spool of a port.

    Raises
    ------
    InputError
        It is no URL, or has a password in it, or no port while no spool is named.
    """
    from urllib.parse import urlsplit

    from extraction.spool import default_spool

    url, _, path = server.partition("=")
    if "@" in url:  # not shown: status, log and store would have it too
        raise InputError(
            f"{option}: no user or password in a URL, please: put an API key into HSSTORE_API_KEY "
            "or a file for --api-key-file"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{option} {url}: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise InputError(f"{option} {url}: not a URL such as http://127.0.0.1:30000")
    if path or spool:
        return url, Path(path) if path else Path(spool or "")
    if port is None:
        raise InputError(f"{option} {url}: no port, so its spool is needed: give URL=SPOOL")
    return url, default_spool(port)


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{option} {text}: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{option} {text}: not a JSON object")
    return value

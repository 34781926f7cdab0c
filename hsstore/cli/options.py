"""Arguments and options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from hsstore.errors import InputError
from hsstore.location import locate, require_local

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from extraction.options import DataOptions
    from hsstore.location import Location

    AnyLocation: TypeAlias = Location
else:
    AnyLocation = str  # typer knows no unions; the parser says what comes


def local_path(what: str) -> Callable[[str], Path]:
    """Return the parser of a path that must be local: a URL is refused by the name of what cannot be done.

    Typer's own conversion of a path looks at it, and would wait for a disk that hangs.

    Parameters
    ----------
    what : str
        Such as "extract writes".
    """

    def parse(text: str) -> Path:
        return require_local(locate(text), what)

    return parse


StoreLocation = Annotated[
    AnyLocation,
    typer.Argument(metavar="STORE", parser=locate, help="The store's directory, or its URL."),
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
    list[AnyLocation] | None,
    typer.Option(
        "--data",
        metavar="FILE",
        parser=locate,
        help="JSONL (.gz, .zst) or Parquet files, or save_to_disk folders, or their URLs; may be repeated.",
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

StageDir = Annotated[
    Path | None,
    typer.Option(
        "--stage",
        parser=local_path("--stage takes"),
        help="Directory for what is on its way to an object store [default: that of TMPDIR].",
    ),
]
ChunkRows = Annotated[int | None, typer.Option(min=1, help="Rows a chunk [default: by width].")]
ShardRows = Annotated[int | None, typer.Option(min=1, help="Rows a shard [default: by size].")]
SpanSamples = Annotated[int | None, typer.Option(min=1, help="Samples a span [default: by size].")]
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
    Path | None,
    typer.Option(
        parser=local_path("--api-key-file reads"),
        help="File with the server's API key [default: HSSTORE_API_KEY].",
    ),
]
CaCert = Annotated[
    Path | None,
    typer.Option(
        parser=local_path("--ca-cert reads"),
        help="PEM file with the private authority that signed an https server's.",
    ),
]
RelayTokenFile = Annotated[
    Path | None,
    typer.Option(
        parser=local_path("--relay-token-file reads"),
        help="File with the token of relays [default: HSSTORE_RELAY_TOKEN].",
    ),
]

GB = 1e9


def data_options(
    files: Sequence[Location] | None,
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


def worker_number(text: str | None) -> tuple[int, int] | None:
    """Parse `--worker`.

    Raises
    ------
    InputError
    """
    if text is None:
        return None
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(count)):
        raise InputError(
            f"--worker {text}: not of the form i/n, such as 0/2 and 1/2 for two workers"
        )
    if int(index) >= int(count):
        raise InputError(
            f"--worker {text}: workers are counted from 0, so the last of {int(count)} is "
            f"{int(count) - 1}/{int(count)}"
        )
    return int(index), int(count)


def server_and_spool(option: str, server: str, spool: Path | None = None) -> tuple[str, Path]:
    """Split URL=SPOOL, and fill in the default spool of a port.

    Raises
    ------
    InputError
        It is no URL, or has a password in it, or no port while no spool is named.
    """
    from extraction.addresses import parse_address

    address = parse_address(option, server, spool)
    if address.relay:
        raise InputError(f"{option} {server}: relays are for `hsstore extract`; name a spool here")
    return address.url, address.spool


def server_addresses(
    servers: list[str] | None, spool: Path | None, servers_file: Path | None
) -> dict[str, Any]:
    """Return the fields of `ExtractOptions` that say which servers are asked.

    Raises
    ------
    InputError
        There is none, or one of them is no address.
    """
    from extraction.addresses import parse_address

    texts = servers or []
    if not texts and servers_file is None:
        raise InputError("no server is named: give --server URL[=SPOOL], or --servers-file FILE")
    if spool is not None and (len(texts) != 1 or servers_file is not None):
        raise InputError("--spool is of one server: name the spool of each with it, as URL=SPOOL")
    named = tuple(parse_address("--server", text, spool) for text in texts)
    fields: dict[str, Any] = {"more_servers": named[1:], "servers_file": servers_file}
    if not named:
        return fields
    first = named[0]
    return fields | {"server": first.url, "spool": first.spool, "relay": first.relay}


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{option} {text}: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{option} {text}: not a JSON object")
    return value

"""`hsstore serve`: run a model that hands its hidden states over."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hsstore.cli.app import app
from hsstore.cli.options import Layers, layer_list, local_path
from hsstore.errors import InputError


@app.command()
def serve(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            parser=local_path("serve takes"),
            help="Directory of a Hugging Face checkpoint.",
        ),
    ],
    sglang_arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- SGLANG ARGUMENTS", help="sglang: passed on; they win."),
    ] = None,
    engine: Annotated[
        Literal["embedded", "sglang"],
        typer.Option(help="embedded: transformers on this CPU; sglang: a real SGLang."),
    ] = "embedded",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 chooses one.")] = 30000,
    spool: Annotated[
        Path | None,
        typer.Option(
            parser=local_path("--spool takes"),
            help="Directory in shared memory [default: by the port].",
        ),
    ] = None,
    spool_group: Annotated[
        int | None, typer.Option(help="Group id to share the spool with [default: private].")
    ] = None,
    layers: Layers = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        typer.Option(help="Element type [default: the checkpoint's]."),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(
            parser=local_path("--python takes"),
            help="sglang: Python of SGLang's environment [default: this one].",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            parser=local_path("--log writes"),
            help="sglang: file for its log [default: ~/.local/state/hsstore/sglang-PORT.log].",
        ),
    ] = None,
    print_command: Annotated[
        bool, typer.Option("--print-command", help="sglang: print how to start it, start nothing.")
    ] = False,
    compute_dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        typer.Option(
            help="embedded: what the model computes in [default: the element type, or float32 where "
            "this processor has no arithmetic for it]."
        ),
    ] = None,
    piece_tokens: Annotated[
        int | None,
        typer.Option(
            help="embedded: rows handed over at a time, as chunked prefill does [default: 256]."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="embedded: forwards at once, a thread each [default: the cores]."),
    ] = None,
) -> None:
    """Serve MODEL until SIGTERM or Ctrl-C; its hidden states go to the spool."""
    common = {
        "model_dir": model,
        "host": host,
        "port": port,
        "spool": spool,
        "spool_group": spool_group,
        "layers": layer_list(layers),
        "dtype": dtype,
    }
    of_embedded = {
        "compute_dtype": compute_dtype,
        "piece_tokens": piece_tokens,
        "threads": threads,
    }
    of_sglang = {"python": python, "log": log}
    forwarded = tuple(sglang_arguments or ())
    if engine == "embedded":
        not_for_it = {**of_sglang, "print_command": print_command or None}
        _refuse_given("embedded", not_for_it, forwarded)
        _serve_embedded({**common, **of_embedded})
    else:
        _refuse_given("sglang", of_embedded, ())
        _serve_sglang({**common, **of_sglang, "arguments": forwarded}, print_only=print_command)


def _serve_embedded(options: dict[str, Any]) -> None:
    from extraction.engines.embedded import ServeOptions, serve as serve_embedded

    serve_embedded(ServeOptions(**_given(options)))


def _serve_sglang(options: dict[str, Any], *, print_only: bool) -> None:
    from extraction.engines.sglang.options import SglangOptions
    from extraction.engines.sglang.serve import print_command, serve as serve_sglang

    given = {"python": Path(sys.executable), **_given(options)}
    (print_command if print_only else serve_sglang)(SglangOptions(**given))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse_given(engine: str, foreign: dict[str, Any], forwarded: tuple[str, ...]) -> None:
    """Refuse options of the other engine: they would be ignored in silence.

    Raises
    ------
    InputError
    """
    given = [f"--{name.replace('_', '-')}" for name in _given(foreign)] + list(forwarded[:1])
    if given:
        raise InputError(f"{given[0]}: not for --engine {engine}")

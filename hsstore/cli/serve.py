"""`hsstore serve`: run a model that hands its hidden states over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hsstore.cli.app import app
from hsstore.cli.options import Layers, layer_list


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(help="Directory of a Hugging Face checkpoint.")],
    engine: Annotated[
        Literal["embedded"], typer.Option(help="embedded: transformers on this CPU.")
    ] = "embedded",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 chooses one.")] = 30000,
    spool: Annotated[
        Path | None, typer.Option(help="Directory in shared memory [default: by the port].")
    ] = None,
    layers: Layers = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        typer.Option(help="Element type [default: the checkpoint's]."),
    ] = None,
    compute_dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        typer.Option(
            help="What the model computes in [default: the element type, or float32 where this "
            "processor has no arithmetic for it]."
        ),
    ] = None,
    piece_tokens: Annotated[
        int, typer.Option(help="Rows handed over at a time, as chunked prefill does.")
    ] = 256,
    threads: Annotated[
        int | None, typer.Option(help="Forwards at once, a thread each [default: the cores].")
    ] = None,
) -> None:
    """Serve MODEL until SIGTERM or Ctrl-C; its hidden states go to the spool."""
    from extraction.engines.embedded import ServeOptions, serve as serve_embedded

    del engine  # the only one so far
    serve_embedded(
        ServeOptions(
            model_dir=model,
            host=host,
            port=port,
            spool=spool,
            layers=layer_list(layers),
            dtype=dtype,
            compute_dtype=compute_dtype,
            piece_tokens=piece_tokens,
            threads=threads,
        )
    )

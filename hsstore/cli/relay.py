"""`hsstore relay`: hand a server's dumps to a client on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hsstore.cli.app import app
from hsstore.cli.options import local_path


@app.command()
def relay(
    spool: Annotated[
        Path,
        typer.Argument(
            metavar="SPOOL",
            parser=local_path("relay takes"),
            help="The spool of the server on this machine.",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses one.")] = 31000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            parser=local_path("--token-file reads"),
            help="File with the token of its client [default: HSSTORE_RELAY_TOKEN].",
        ),
    ] = None,
    max_connections: Annotated[
        int, typer.Option(min=4, help="Requests at once; more are told to come later.")
    ] = 64,
    lease: Annotated[
        float,
        typer.Option(min=5.0, help="Seconds for which a silent client keeps the spool to itself."),
    ] = 180.0,
) -> None:
    """Relay the finished dumps of SPOOL over HTTP until SIGTERM or Ctrl-C.

    On the client's machine: hsstore extract STORE --server http://HOST:30000=http://HOST:31000
    """
    from extraction.relay.serve import RelayOptions, serve_relay
    from extraction.relay.token import read_token

    serve_relay(
        RelayOptions(
            spool=spool,
            host=host,
            port=port,
            token=read_token(token_file, "--token-file"),
            max_connections=max_connections,
            lease_seconds=lease,
        )
    )

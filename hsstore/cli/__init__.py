# ruff: noqa: F401  # importing a command registers it
"""The `hsstore` command. One file a command: it parses, calls the library, prints the report.

`hsstore --help` has to be fast: a command imports what it needs when it runs.
"""

from __future__ import annotations

from hsstore.cli import (
    consolidate,
    doctor,
    export,
    extract,
    import_,
    info,
    plan,
    regenerate,
    relay,
    serve,
    status,
    verify,
)
from hsstore.cli.app import app


def main() -> None:
    """Run the command line and exit."""
    app(prog_name="hsstore")

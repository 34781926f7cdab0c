"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="The store's directory.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document, as schemas/ describes it.")
]

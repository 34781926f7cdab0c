"""hsstore's commands, in the process of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.testing import CliRunner

import hsstore.cli  # noqa: F401  # registers the commands
from hsstore.cli.app import app

if TYPE_CHECKING:
    from typer.testing import Result


def command(*arguments: object) -> Result:
    """Run a command; return what it printed and how it ended."""
    return CliRunner().invoke(app, [*map(str, arguments)])

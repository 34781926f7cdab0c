"""The command line application, and the one place where errors become exit codes.

Typer itself ends with 2 on wrong usage. An error that is not an `HsstoreError` is a bug: it keeps
its traceback.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typing_extensions import override

from hsstore.errors import HsstoreError, InterruptedRunError


class _Commands(TyperGroup):
    """The group of all commands; what a command raises ends here."""

    @override
    def invoke(self, ctx: Any) -> Any:  # Typer has changed whose Context this is
        try:
            return super().invoke(ctx)
        except HsstoreError as error:
            _fail(str(error), error.exit_code)
        except KeyboardInterrupt:
            _fail("interrupted", InterruptedRunError.exit_code)


def _fail(message: str, exit_code: int) -> NoReturn:
    print(f"hsstore: {message}", file=sys.stderr)
    raise typer.Exit(exit_code)


app = typer.Typer(
    name="hsstore",
    cls=_Commands,
    help="Hidden states of a target model in one chunked, compressed Zarr store.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it would swallow "[default: ...]"
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hsstore {version('hsstore')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass

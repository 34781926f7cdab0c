"""What the commands of this package have in common."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from hsstore.errors import HsstoreError

if TYPE_CHECKING:
    from collections.abc import Callable


def end_with(main: Callable[[], int | None]) -> NoReturn:
    """Run a command, and end the process as `hsstore` would: an error that is ours is one line."""
    try:
        sys.exit(main())
    except HsstoreError as error:
        print(f"hsstore: {error}", file=sys.stderr)  # noqa: T201  # this is a command
        sys.exit(error.exit_code)

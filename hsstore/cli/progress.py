"""The progress bar of commands that work through a number of tasks."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.tasks import Progress


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """Show a bar on stderr where that is a terminal.

    Parameters
    ----------
    what : str
        What is counted, such as "blocks".
    """
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

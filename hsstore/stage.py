"""A directory of one run for what is on its way to an object store: gone when the run has ended, or is dead.

The lock in it is held while the run lives. Who comes next on the same file system removes what dead runs left.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hsstore.files import output_errors, stage_parent
from hsstore.liveness import open_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.location import Location

PREFIX = "hsstore-stage-"
_LOCK = "lock"


class Stage:
    """The stage of a run; a context manager that removes it.

    Parameters
    ----------
    parent : Path, optional
        Where to make it; the directory for temporary files (TMPDIR) if it is left out.
    run : str
        Identity of the run, unique.

    Raises
    ------
    OutputError
    """

    def __init__(self, parent: Path | None, run: str) -> None:
        parent = stage_parent(parent)
        self.path = parent / f"{PREFIX}{run}"
        building = parent / f".{self.path.name}"
        with output_errors(parent):
            parent.mkdir(parents=True, exist_ok=True)
            _remove_dead(parent)
            building.mkdir(mode=0o700)
            self._lock = open_lock(building / _LOCK)
            building.rename(self.path)  # with its lock held

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def stage_for(store: Location) -> Iterator[Path | None]:
    """Give a stage for what goes to a URL; None for a directory, which needs none.

    Raises
    ------
    OutputError
    """
    if isinstance(store, Path):
        yield None
        return
    with Stage(None, uuid.uuid4().hex) as stage:
        yield stage.path


def _remove_dead(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or one that ends just now
            lock = open_lock(path / _LOCK, create=False)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)

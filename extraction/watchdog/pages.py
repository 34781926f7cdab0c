"""The three files of a run in shared memory, as its supervisor holds them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from extraction.page import Page, allocate_page
from extraction.status import StatusPage, stacks_path, watch_path
from hsstore.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path


class RunPages:
    """Status page, watch page and the file for stacks; the status page is locked."""

    def __init__(self, status: StatusPage, watch: Page) -> None:
        self.status = status
        self.watch = watch

    @classmethod
    def create(cls, directory: Path, store: str) -> Self:
        """Create the files of a new run, and remove what dead runs on this store left.

        Raises
        ------
        RefusedError
            The directory is somebody else's.
        OutputError
            Shared memory is full.
        """
        try:
            status = StatusPage.create(directory, store)
            try:
                return cls(status, _create_others(status.path))
            except OSError:
                _remove_others(status.path)
                status.remove()
                raise
        except OSError as error:
            raise OutputError(
                f"no room for the run's status in shared memory, {directory}: {error.strerror}; see "
                "who fills it (df, ls -l /dev/shm), then run the same command again"
            ) from error

    def remove(self) -> None:
        """Delete the files."""
        self.watch.close()
        _remove_others(self.status.path)
        self.status.remove()


def _create_others(status: Path) -> Page:
    _create(stacks_path(status))
    watch = watch_path(status)
    _create(watch, page=True)
    return Page(watch)


def _remove_others(status: Path) -> None:
    for path in (watch_path(status), stacks_path(status)):
        path.unlink(missing_ok=True)


def _create(path: Path, *, page: bool = False) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if page:
            allocate_page(descriptor)
    finally:
        os.close(descriptor)

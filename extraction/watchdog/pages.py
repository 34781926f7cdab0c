"""The three files of a run in shared memory, as its supervisor holds them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from extraction.page import Page, allocate_page
from extraction.status import StatusPage, stacks_path, watch_path

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
        OSError
            Shared memory is full, or the directory is somebody else's.
        """
        status = StatusPage.create(directory, store)
        _create(stacks_path(status.path))
        watch = watch_path(status.path)
        _create(watch, page=True)
        return cls(status, Page(watch))

    def remove(self) -> None:
        """Delete the files."""
        self.watch.close()
        for path in (watch_path(self.status.path), stacks_path(self.status.path)):
            path.unlink(missing_ok=True)
        self.status.remove()


def _create(path: Path, *, page: bool = False) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if page:
            allocate_page(descriptor)
    finally:
        os.close(descriptor)

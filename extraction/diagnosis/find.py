"""Find the run of a store by what the status pages say, also a dead one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from extraction.diagnosis.mounts import known_mounts, locate
from extraction.page import is_locked, read_page
from extraction.status import PREFIX, STATUS_SUFFIX, RunStatus, parse_status

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where the pages of all users lie
_DIRECTORY = "hsstore-"


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A status page that can be read."""

    path: Path
    status: RunStatus
    held: bool
    """Its supervisor lives."""


@dataclass(frozen=True, slots=True)
class Pages:
    """All pages that can be read, and where there may be others."""

    found: tuple[FoundPage, ...] = ()
    hidden: tuple[str, ...] = field(default=())
    """Directories of other users."""

    def of(self, *paths: str) -> tuple[FoundPage, ...]:
        """Return the pages of a store: first those of live runs, the newest before the others.

        Paths are compared by their spelling and the kernel's list of mounts alone: the disks of
        other runs may hang, which must not look like a hang of this store.

        Parameters
        ----------
        *paths
            Absolute paths of the one store, such as the one given and the one without links.
        """
        mounts = known_mounts()
        wanted = {locate(path, mounts) for path in paths if path}

        def is_ours(page: FoundPage) -> bool:
            names = (page.status.store, page.status.store_real)
            return any(locate(name, mounts) in wanted for name in names if name)

        ours = filter(is_ours, self.found)
        return tuple(sorted(ours, key=lambda one: (not one.held, -one.status.updated_seconds)))


def find_pages(root: Path = SHARED_MEMORY) -> Pages:
    """Read the status pages of all users whose pages we may read."""
    found: list[FoundPage] = []
    hidden: list[str] = []
    for directory in sorted(root.glob(f"{_DIRECTORY}*")):
        if not directory.is_dir():
            continue
        if not os.access(directory, os.R_OK | os.X_OK):
            hidden.append(str(directory))
            continue
        for path in directory.glob(f"{PREFIX}*{STATUS_SUFFIX}"):
            found += _read(path)
    return Pages(tuple(found), tuple(hidden))


def _read(path: Path) -> list[FoundPage]:
    try:
        status = parse_status(read_page(path))
        return [] if status is None else [FoundPage(path, status, is_locked(path))]
    except (OSError, ValueError):  # another user's, or of another version
        return []

"""The copies of a run's status, log and last stall report beside its store: names, and reading.

Standard library only: the process that writes them starts fast with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STATUS, STALL, LOG = ".status.json", ".stall.json", ".log"
COPY_SECONDS: Final = 10.0
"""Between two copies of a live run's status."""
ALIVE_SECONDS: Final = 3 * COPY_SECONDS
"""A copy that is older is of a run that is dead, or that cannot write beside its store."""


def runs_directory(store: Path) -> Path:
    """Return the directory beside a store for what is about its runs."""
    return store.parent / f"{store.name}.runs"  # also of a path that has no name


def read_copies(store: Path) -> list[dict[str, Any]]:
    """Read the status and the last stall report of every run that left copies; may hang.

    Returns
    -------
    list of dict
        Newest first: `status` and `stall` as texts, the latter empty where nothing was reported,
        and `written_seconds`, the Unix time of the copy by the file system's clock.
    """
    found = list(_read(runs_directory(store)))
    return sorted(found, key=lambda copy: copy["written_seconds"], reverse=True)


def _read(directory: Path) -> Iterator[dict[str, Any]]:
    for path in directory.glob(f"[!.]*{STATUS}"):
        stall = path.with_name(path.name.removesuffix(STATUS) + STALL)
        try:
            yield {
                "status": path.read_text(),
                "stall": stall.read_text() if stall.exists() else "",
                "written_seconds": path.stat().st_mtime,
            }
        except (FileNotFoundError, PermissionError):  # replaced or removed this moment; not for us
            continue

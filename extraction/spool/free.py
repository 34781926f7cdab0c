"""`free/`: files given back, kept because their pages are already faulted in.

Writing into fresh tmpfs pages costs about eight times a copy into faulted ones. Client and server
both take files out; each file goes to whoever renames or removes it first.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extraction.spool.names import RequestId

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class FreeFiles:
    """The free files of one spool. Names that are not request ids are left alone."""

    path: Path

    def allocated_bytes(self) -> int:
        """Count the memory that they hold."""
        return sum(size for size, _ in self._files())

    def take(self, size_bytes: int, destination: Path) -> None:
        """Move the file that fits best to `destination`, or nothing where there is none."""
        while files := self._files():
            large_enough = [one for one in files if one[0] >= size_bytes]
            _, name = min(large_enough) if large_enough else max(files)
            try:
                (self.path / name).rename(destination)
            except FileNotFoundError:
                continue  # the other side was faster
            return

    def trim(self, keep_bytes: int) -> None:
        """Remove files, the largest first, until at most `keep_bytes` remain."""
        files = sorted(self._files())
        held_bytes = sum(size for size, _ in files)
        while files and held_bytes > keep_bytes:
            size_bytes, name = files.pop()
            (self.path / name).unlink(missing_ok=True)
            held_bytes -= size_bytes

    def drop_largest(self) -> bool:
        """Remove one file; False where there is none."""
        files = self._files()
        if files:
            (self.path / max(files)[1]).unlink(missing_ok=True)
        return bool(files)

    def _files(self) -> list[tuple[int, str]]:
        files: list[tuple[int, str]] = []
        with suppress(FileNotFoundError), os.scandir(self.path) as entries:  # or no spool at all
            for entry in entries:
                if RequestId.is_one(entry.name):
                    with suppress(FileNotFoundError):
                        files.append((entry.stat().st_blocks * 512, entry.name))
        return files

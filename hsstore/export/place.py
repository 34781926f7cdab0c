"""Where an export goes: a directory, or objects under a URL.

A file gets its name when it is whole, and an object is always whole. So what is there is left as it is, and the
same command goes on with what is missing. Each can be pickled, for workers elsewhere.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hsstore.errors import RefusedError
from hsstore.export.record import NAME, owned, record_bytes
from hsstore.files import (
    PARTIAL_SUFFIX,
    fsync_directory,
    make_directory,
    output_errors,
    write_durably,
)
from hsstore.formats.files import SAFETENSORS, is_whole, read_remark, remark_of, write_file
from hsstore.location import RemotePath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hsstore.formats.sample import Content
    from hsstore.report import ExportRecord

HEAD_BYTES = 4096
"""Of a safetensors file: its header, with the remark."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Files below a directory."""

    root: Path

    def owned(self) -> AbstractContextManager[None]:
        """Create it, and keep other exports out of it; see `hsstore.export.record`."""
        return owned(self.root)

    def write_record(self, record: ExportRecord) -> None:
        """Write it, durably.

        Raises
        ------
        OutputError
        """
        with output_errors(self.root):
            write_durably(self.root / NAME, record_bytes(record))

    def strangers(self) -> list[str]:
        """Return the names of what is there and is not ours, in a place without a record."""
        return [one.name for one in self.root.iterdir() if one.suffix != PARTIAL_SUFFIX]

    def missing(self, names: Sequence[str]) -> list[int]:
        """Return which of these files are not there, by their place among the names."""
        return [row for row, name in enumerate(names) if not (self.root / name).exists()]

    def free_bytes(self) -> int | None:
        """Return how much room there is; None where there is no end."""
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def kept(self, name: str) -> str | None:
        """Return the remark in a file, if it is there and whole."""
        path = self.root / name
        with output_errors(path):
            if not is_whole(path):
                return None
            return read_remark(path) if path.suffix == SAFETENSORS else ""

    def write(self, name: str, content: Content, remark: str) -> int:
        """Write a file; return its size in bytes.

        Raises
        ------
        OutputError
        """
        path = self.root / name
        with output_errors(path):
            make_directory(path.parent)
            return write_file(path, content, remark)

    def settle(self, names: Iterable[str]) -> None:
        """Make the names of files durable, also of those that were there."""
        for directory in {(self.root / name).parent for name in names}:
            with output_errors(directory):
                fsync_directory(directory)

    def write_beside(self, write: Callable[[Path], None]) -> None:
        """Write what lies beside the samples, given the directory."""
        write(self.root)

    def clean(self) -> None:
        """Remove what a killed run has left; nobody else writes here."""
        for path in self.root.rglob(f"*{PARTIAL_SUFFIX}"):
            path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Objects below a URL. Each file is written into a stage and put as a whole, if there is none of its name.

    Two exports of one command may write side by side, the second by the record of the first: whoever is second
    with a file finds it there.
    """

    root: RemotePath
    stage: Path | None
    """A directory of this run; a worker that has it not writes into TMPDIR."""

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Do nothing: an export begins with a record where there is none."""
        yield

    def write_record(self, record: ExportRecord) -> None:
        """Put it; while it is not finished, only where there is none.

        Raises
        ------
        ConflictError
            Another export was begun meanwhile: its rows may be other samples.
        UnreachableError, InputError
        """
        from hsstore.objects.puts import ABSENT  # noqa: PLC0415
        from hsstore.objects.write import put  # noqa: PLC0415

        if record.finished:
            self._replace(NAME, record_bytes(record))
        else:
            put(str(self.root / NAME), record_bytes(record), replaces=ABSENT)

    def strangers(self) -> list[str]:
        """As that of a directory."""
        return sorted(self.root.find())

    def missing(self, names: Sequence[str]) -> list[int]:
        """As that of a directory; it lists the objects."""
        there = self.root.find()
        return [row for row, name in enumerate(names) if name not in there]

    def free_bytes(self) -> int | None:
        """Return None."""
        return None

    def kept(self, name: str) -> str | None:
        """As that of a directory."""
        path = self.root / name
        try:
            head = path.get(0, HEAD_BYTES if name.endswith(SAFETENSORS) else 1).data
        except FileNotFoundError:
            return None
        with suppress(ValueError):  # somebody else's
            return remark_of(head) if name.endswith(SAFETENSORS) else ""
        return ""

    def write(self, name: str, content: Content, remark: str) -> int:
        """Put a file, unless it is there by now; return its size in bytes.

        Raises
        ------
        OutputError
            The stage has no room.
        UnreachableError, InputError
        """
        from hsstore.objects.files import put_file  # noqa: PLC0415  # brings fsspec
        from hsstore.objects.puts import ABSENT, ConflictError  # noqa: PLC0415

        with self._room() as room:
            path = Path(room) / name.rpartition("/")[2]
            with output_errors(path):
                size = write_file(path, content, remark)
            with suppress(ConflictError):
                put_file(path, str(self.root / name), replaces=ABSENT)
        return size

    def settle(self, names: Iterable[str]) -> None:
        """Do nothing: what was put is durable."""

    def write_beside(self, write: Callable[[Path], None]) -> None:
        """Have it written into the stage, and put it; what is there is replaced."""
        with self._room() as room:
            write(Path(room))
            for path in sorted(path for path in Path(room).rglob("*") if path.is_file()):
                self._replace(str(path.relative_to(room)), path)

    def clean(self) -> None:
        """Do nothing: nobody sees what was not put as a whole."""

    def _room(self) -> tempfile.TemporaryDirectory[str]:
        is_here = self.stage is not None and self.stage.is_dir()
        return tempfile.TemporaryDirectory(
            prefix="hsstore-export-", dir=self.stage if is_here else None
        )

    def _replace(self, name: str, data: bytes | Path) -> None:
        from hsstore.objects.files import put_file  # noqa: PLC0415
        from hsstore.objects.write import put, version_of  # noqa: PLC0415

        url = str(self.root / name)
        replaces = version_of(url)
        if isinstance(data, Path):
            put_file(data, url, replaces=replaces)
        else:
            put(url, data, replaces=replaces)


Place: TypeAlias = Directory | Bucket


def place_of(root: Path | RemotePath, stage: Path | None = None) -> Place:
    """Return where an export goes."""
    return Bucket(root, stage) if isinstance(root, RemotePath) else Directory(root)


def refuse_strangers(place: Place) -> None:
    """Refuse a place that no export has begun, and that is not empty.

    Raises
    ------
    RefusedError
    """
    if strangers := place.strangers():
        raise RefusedError(
            f"{place.root} is not empty, and no export has made it: it has {min(strangers)!r}; name a directory "
            "that does not exist"
        )

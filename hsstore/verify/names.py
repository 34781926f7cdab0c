"""Which names belong into a store: chunks of its arrays, and what dead runs and file systems leave."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from itertools import starmap
from typing import TYPE_CHECKING, Any

from hsstore.files import PARTIAL_SUFFIX

if TYPE_CHECKING:
    from hsstore.location import Location, RemotePath
    from hsstore.store import Store

    Grid = tuple[int, ...] | None

STALE_NAME = ".nfs"
"""What a network file system calls a file that is removed while somebody has it open."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies in a store besides its data."""

    unexpected: list[Location] = field(default_factory=list)
    partial: list[Location] = field(default_factory=list)
    """Files that were begun and not published."""

    def sort_in(self, path: Location) -> None:
        """Take note of a file that is none of the store's."""
        if path.name.endswith(PARTIAL_SUFFIX):
            self.partial.append(path)
        elif not path.name.startswith(STALE_NAME):
            self.unexpected.append(path)


def read_grid(array: Location) -> Grid:
    """Count an array's files along each axis; None where its zarr.json does not say.

    Raises
    ------
    InputError
        An object store refuses.
    """
    try:
        document: dict[str, Any] = json.loads((array / "zarr.json").read_bytes())
        sizes = document["chunk_grid"]["configuration"]["chunk_shape"]
        return tuple(starmap(_files, zip(document["shape"], sizes, strict=True)))
    except (OSError, ValueError, TypeError, KeyError, ZeroDivisionError):
        return None


def _files(length: int, size: int) -> int:
    return math.ceil(length / size)


def is_chunk(name: str, grid: Grid) -> bool:
    """Say whether a file of this name is a chunk of an array; any chunk, where the grid is not known."""
    prefix, *numbers = name.split(".")
    if prefix != "c" or not all(number.isdecimal() for number in numbers):
        return False
    if grid is None:
        return True
    return len(numbers) == len(grid) and all(
        int(number) < count and number == str(int(number))
        for number, count in zip(numbers, grid, strict=True)
    )


def look_at_objects(store: Store, root: RemotePath, contents: Contents) -> None:
    """Look at the names of all objects of a store: the one place that lists them.

    Raises
    ------
    UnreachableError, InputError
    """
    names = [tuple(name.split("/")) for name in sorted(root.find())]
    arrays: dict[tuple[str, ...], Grid] = {
        (name,): read_grid(root / name) for name in store.spec.seal.arrays
    }
    in_runs = {name[:-1] for name in names if _is_array_of_run(name)}
    arrays |= {group: read_grid(root / "/".join(group)) for group in in_runs}
    for name in names:
        if _is_of_dead_creation(name, arrays):
            contents.partial.append(root / "/".join(name))
        elif not _is_expected(name, arrays):
            contents.sort_in(root / "/".join(name))


def _is_array_of_run(name: tuple[str, ...]) -> bool:
    return len(name) == 4 and name[0] == "runs" and name[-1] == "zarr.json"


def _is_of_dead_creation(name: tuple[str, ...], arrays: dict[tuple[str, ...], Grid]) -> bool:
    """Say whether it is a chunk of an array of a run whose `zarr.json` was never put."""
    is_of_run = len(name) == 4 and name[0] == "runs"
    return is_of_run and name[:-1] not in arrays and is_chunk(name[-1], None)


def _is_expected(name: tuple[str, ...], arrays: dict[tuple[str, ...], Grid]) -> bool:
    group, last = name[:-1], name[-1]
    if group in arrays:
        return last == "zarr.json" or is_chunk(last, arrays[group])
    is_run = group[:1] == ("runs",) and len(group) <= 2
    return last == "zarr.json" and (not group or is_run)

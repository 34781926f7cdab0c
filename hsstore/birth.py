"""Make a store that was built on a disk one in an object store.

Nothing is ever replaced meanwhile. An object that is there already, of a creation that was killed or of one that
goes on beside this one, is taken as it is if it is the same, which it is for the same command; else this creation
is refused. The root's zarr.json comes last, and is created: so all that it speaks for is there, and of one plan.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hsstore.errors import RefusedError
from hsstore.files import output_errors
from hsstore.location import RemotePath, runs_beside
from hsstore.objects.puts import ABSENT, ConflictError, Put
from hsstore.objects.write import head, put, put_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ROOT = "zarr.json"
AT_ONCE_BYTES = 64 << 20
"""Of objects that are put side by side, unless one is larger."""
_GOLDEN = "golden/c."
"""Measured, and so not the same twice: that of whoever was first is the store's."""


def upload_store(building: Path, root: RemotePath) -> None:
    """Put a new store, unless somebody else has finished one there.

    Raises
    ------
    RefusedError
        What is there is not of this plan, or is removed meanwhile.
    OutputError
        The new store cannot be read.
    UnreachableError, InputError
    """
    for batch in _batches(building, root):
        for one, version in zip(batch, put_many(batch), strict=True):
            if version is None and not _is_taken(one, root):
                return
    with suppress(ConflictError):
        put(str(root / ROOT), _read(building, ROOT), replaces=ABSENT)


def is_born(root: RemotePath) -> bool:
    """Say whether a store is there.

    Raises
    ------
    UnreachableError, InputError
        The latter also for a whole bucket, before anything is put there.
    """
    runs_beside(root)
    return head(str(root / ROOT)) is not None


def _batches(building: Path, root: RemotePath) -> Iterator[list[Put]]:
    batch: list[Put] = []
    size = 0
    for name in _names(building):
        data = _read(building, name)
        if batch and size + len(data) > AT_ONCE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(Put(str(root / name), data, ABSENT))
        size += len(data)
    yield batch


def _read(building: Path, name: str) -> bytes:
    with output_errors(building):
        return (building / name).read_bytes()


def _names(building: Path) -> Iterable[str]:
    files = (path for path in building.rglob("*") if path.is_file())
    return sorted({str(file.relative_to(building)) for file in files} - {ROOT})


def _is_taken(mine: Put, root: RemotePath) -> bool:
    """Say whether to go on with the object that is there; no, where a whole store is there by now."""
    name = mine.url.removeprefix(f"{root}/")
    try:
        if name.startswith(_GOLDEN) or RemotePath(mine.url).read_bytes() == mine.data:
            return True
    except FileNotFoundError:
        raise ConflictError(mine.url) from None
    if is_born(root):
        return False
    raise RefusedError(
        f"{mine.url} is there, and is not of the store that is to be created; a store is not there, as it would have "
        f"a {ROOT}. Somebody else creates one now, or did not get to its end: take another URL, or remove what is "
        f"under {root}, then run the same command again"
    )

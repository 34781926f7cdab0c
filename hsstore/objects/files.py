"""Objects that are sent in parts, in the memory of a few of them: files, and what must not look as it did before."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

from hsstore.errors import HsstoreError
from hsstore.objects.write import PART_BYTES, Upload, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


def put_file(path: Path, url: str, *, replaces: str) -> str:
    """Put a file as an object, in parts where it is large; return its version.

    Raises
    ------
    ConflictError, UnreachableError, InputError
        As `put`.
    OSError
        The file cannot be read.
    """
    size = path.stat().st_size
    if size <= PART_BYTES:
        return put(url, path.read_bytes(), replaces=replaces)
    with path.open("rb") as file:
        parts = repeat(partial(file.read, PART_BYTES), -(-size // PART_BYTES))
        return put_parts(url, parts, replaces=replaces)


def came_in_parts(version: str) -> bool:
    """Say whether an object came in parts, by its version: that of S3 tells, and others need not."""
    return "-" in version


def put_parts(url: str, parts: Iterable[Callable[[], bytes]], *, replaces: str) -> str:
    """Put an object in parts, be it one; return its version: none that `put` gives the same bytes.

    An ETag is made of the bytes, and of whether they came in parts.

    Raises
    ------
    ConflictError, UnreachableError, InputError
        As `put`.
    """
    upload = Upload(url, replaces=replaces)
    try:
        for part in parts:
            upload.part(part)
        return upload.finish().complete()
    except BaseException:
        with suppress(HsstoreError):  # that may not be allowed, and must not hide what came before
            upload.abort()
        raise

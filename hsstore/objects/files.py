"""Files into objects, in the memory of a few parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hsstore.objects.write import PART_BYTES, Upload, put

if TYPE_CHECKING:
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
    upload = Upload(url, replaces=replaces)
    try:
        with path.open("rb") as file:
            for _ in range(0, size, PART_BYTES):
                upload.part(lambda: file.read(PART_BYTES))
        return upload.finish().complete()
    except BaseException:
        upload.abort()
        raise

"""Write the files of some samples: the unit of work that Dask distributes.

A task can be pickled and done twice: files that are whole are left as they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hsstore.errors import InputError
from hsstore.files import fsync_directory, make_directory, output_errors
from hsstore.formats import FORMATS
from hsstore.formats.files import SAFETENSORS, is_whole, read_remark, write_file
from hsstore.formats.source import StoreSource
from hsstore.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.location import Location

OPEN_STORES = 4


@dataclass(frozen=True, slots=True)
class BlockTask:
    """Samples of one block of a store, and their rows in the directory."""

    store: Location
    store_id: str
    directory: Path
    trainer: str
    samples: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(slots=True)
class BlockResult:
    """What became of them."""

    written: int = 0
    kept: int = 0
    bytes_written: int = 0
    norm_error: float = 0.0
    """The largest; also of files that were kept, which say their own."""

    def add_error(self, error: float) -> None:
        """Take note of what the conversion of a sample has cost."""
        self.norm_error = max(self.norm_error, error)


def write_block(task: BlockTask) -> BlockResult:
    """Write the files that are not there.

    Raises
    ------
    OutputError
        The directory cannot be written.
    NotExtractedError, CorruptStoreError
        A sample cannot be read.
    InputError
        The format cannot hold a sample, or this is another store.
    """
    result = BlockResult()
    touched: set[Path] = set()
    source = _open(task.store, task.store_id, task.trainer, os.getpid())
    form = FORMATS[task.trainer]
    for row, sample in zip(task.rows, task.samples, strict=True):
        path = task.directory / form.path(row, source.name(sample))
        touched.add(path.parent)  # also of a whole file: its name may be newer than the last fsync
        with output_errors(path):
            if is_whole(path):
                result.kept += 1
                result.add_error(_recorded_error(path))
                continue
        content, error = source.content(sample)
        with output_errors(path):
            make_directory(path.parent)
            result.bytes_written += write_file(path, content, str(error) if error else "")
        result.written += 1
        result.add_error(error)
    for directory in touched:
        with output_errors(directory):
            fsync_directory(directory)
    return result


def _recorded_error(path: Path) -> float:
    """Return what the conversion of a sample has cost when its file was written."""
    try:
        return float(read_remark(path) or 0) if path.suffix == SAFETENSORS else 0.0
    except ValueError:  # somebody else's remark
        return 0.0


@lru_cache(maxsize=OPEN_STORES)
def _open(path: Location, store_id: str, trainer: str, process: int) -> StoreSource:  # noqa: ARG001
    """Open a store once a process; what a fork leaves of an open one is not to be used."""
    store = Store.open(path)
    if store.spec.store != store_id:
        raise InputError(
            f"{path} is store {store.spec.store}, and was {store_id} when this export began; put the old one "
            "back, then run the same command again"
        )
    return StoreSource(store, FORMATS[trainer])


def close_stores() -> None:
    """Close what tasks have opened in this process: files stay open otherwise."""
    _open.cache_clear()

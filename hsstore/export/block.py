"""Write the files of some samples: the unit of work that Dask distributes.

A task can be pickled and done twice: files that are whole are left as they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hsstore.errors import InputError
from hsstore.formats import FORMATS
from hsstore.formats.source import StoreSource
from hsstore.store import Store

if TYPE_CHECKING:
    from hsstore.export.place import Place
    from hsstore.location import Location

OPEN_STORES = 4


@dataclass(frozen=True, slots=True)
class BlockTask:
    """Samples of one block of a store, and their rows in the directory."""

    store: Location
    store_id: str
    place: Place
    trainer: str
    samples: tuple[int, ...]
    rows: tuple[int, ...]
    missing: tuple[bool, ...]
    """Files that are not there: the others may be, whole."""


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
    names: list[str] = []
    source = _open(task.store, task.store_id, task.trainer, os.getpid())
    form = FORMATS[task.trainer]
    for row, sample, is_missing in zip(task.rows, task.samples, task.missing, strict=True):
        name = form.path(row, source.name(sample))
        names.append(name)
        remark = None if is_missing else task.place.kept(name)
        if remark is not None:
            result.kept += 1
            result.add_error(_error_in(remark))
            continue
        content, error = source.content(sample)
        result.bytes_written += task.place.write(name, content, str(error) if error else "")
        result.written += 1
        result.add_error(error)
    task.place.settle(names)
    return result


def _error_in(remark: str) -> float:
    """Return what the conversion of a sample has cost when its file was written."""
    try:
        return float(remark or 0)
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

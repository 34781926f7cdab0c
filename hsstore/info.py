"""Sum up a store: the plan, how much of it is there, and what it costs on disk."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hsstore.location import RemotePath
from hsstore.report import Info

if TYPE_CHECKING:
    from hsstore.location import Location
    from hsstore.store import Store


def store_info(store: Store) -> Info:
    """Sum up a store; reads the plan and the completion arrays, no payload.

    Raises
    ------
    CorruptStoreError
        The plan or the completion arrays cannot be read.
    """
    spec, layout = store.spec, store.layout
    state = store.completion()
    tokens_complete = int(store.length[state.complete].sum(dtype=np.int64))
    bytes_raw = tokens_complete * layout.geometry.row_bytes
    files, bytes_stored = disk_usage(store.location)
    codes, counts = np.unique(state.failed[state.failed != 0], return_counts=True)
    return Info(
        path=str(store.location),
        samples=len(store),
        complete=int(state.complete.sum()),
        failed=int(counts.sum()),
        failed_by_reason={
            spec.failure_label(code): count
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
        },
        pending=int(state.pending.sum()),
        tokens=spec.dataset.tokens,
        tokens_complete=tokens_complete,
        bytes_raw=bytes_raw,
        bytes_stored=bytes_stored,
        files=files,
        ratio=bytes_raw / bytes_stored if bytes_raw else None,
        slots=spec.model.slots,
        hidden=spec.model.hidden,
        dtype=spec.model.dtype,
        layers=spec.model.layers,
        final=spec.model.final,
        model=spec.model.id,
        codec=spec.codec,
        blocks=layout.blocks,
        shards=layout.shards,
        spans=layout.spans,
        splits=spec.dataset.split_names,
        created=spec.created,
        created_by=spec.created_by,
        runs=tuple(store.runs()),
    )


def disk_usage(root: Location) -> tuple[int, int]:
    """Count the files or objects below a directory or URL, and their bytes."""
    if isinstance(root, RemotePath):
        sizes = root.find().values()
        return len(sizes), sum(sizes)
    return _usage(str(root))


def _usage(directory: str) -> tuple[int, int]:
    """Count the files below a directory; there may be millions: no `Path` for each."""
    files = size = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            # A run may be renaming files meanwhile.
            with suppress(FileNotFoundError):
                if entry.is_dir():
                    below = _usage(entry.path)
                    files, size = files + below[0], size + below[1]
                elif entry.is_file():
                    files, size = files + 1, size + entry.stat().st_size
    return files, size

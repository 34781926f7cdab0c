"""The memory of a write is that of a few chunks, whatever the sample and the shard."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np

from hsstore.create import LayoutOptions
from hsstore.testing.stores import make_model, make_store
from hsstore.writer import LOOKAHEAD_CHUNKS, BlockWriter

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

CHUNK_ROWS = 64
CHUNKS = 200
HIDDEN = 1024


def test_a_long_sample_is_written_in_the_memory_of_a_few_chunks(
    directory: Path, encoders: ThreadPoolExecutor
) -> None:
    rows = CHUNK_ROWS * CHUNKS
    options = LayoutOptions(CHUNK_ROWS, rows, 1)
    store = make_store(
        directory / "s.zarr", [rows], model=make_model(hidden=HIDDEN), options=options
    )
    file = directory / "dump"
    np.memmap(file, np.uint16, "w+", shape=(rows, 3, HIDDEN))[...] = 16256  # 1.0
    dump = np.memmap(file, np.uint16, "r", shape=(rows, 3, HIDDEN))
    chunk_bytes = CHUNK_ROWS * 3 * HIDDEN * 2
    writer = BlockWriter(
        store.path, store.layout, store.codec, store.layout.block(0), run="r", encoders=encoders
    )
    tracemalloc.start()

    writer.append(0, dump)
    store.commit(writer, {}, lambda: None)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * LOOKAHEAD_CHUNKS * chunk_bytes < dump.nbytes / 10
    assert np.array_equal(store.payload.read(0), dump)

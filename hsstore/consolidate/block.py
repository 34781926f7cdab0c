"""Write the shards of one block of the destination: the unit of work that Dask distributes.

A task can be pickled, its worker needs only the files of the stores, and it can be done twice: it writes
under names of its own, and only the process that gave it out publishes them.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import numpy as np

from hsstore.consolidate.link import take_over
from hsstore.consolidate.task import BlockResult
from hsstore.consolidate.writer import ShardsWriter, open_store, partial_name
from hsstore.errors import CorruptStoreError
from hsstore.location import RemotePath
from hsstore.shard import shard_path
from hsstore.shard.index import MISSING
from hsstore.shard.reader import ShardReader

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.consolidate.task import BlockTask


def write_block(task: BlockTask) -> BlockResult:
    """Link, copy or encode the samples of a block into sealed shards.

    Raises
    ------
    InputError
        A store is not where it was.
    OutputError
        The destination cannot be written.
    CorruptStoreError
        The destination's own states are damaged.
    """
    # A name of its own each time: what was linked must never be opened for writing.
    run = f"{task.run}-{uuid.uuid4().hex[:12]}"
    return _link(task, run) or ShardsWriter(task, run).write()


def _link(task: BlockTask, run: str) -> BlockResult | None:
    """Take over the shards of a source, if they hold exactly the chunks of this block."""
    root = task.destination.path
    is_remote = isinstance(task.sources[int(task.source[0])].path, RemotePath)
    if task.linking == "never" or task.complete.any() or is_remote or isinstance(root, RemotePath):
        return None
    result = BlockResult(task.block)
    if _link_shards(task, root, run, result) and _holds_exactly(
        task, list(result.partials.values())
    ):
        for index, sample in enumerate(task.block.samples):
            result.digests[sample] = int(task.digest[index])
            result.how[sample] = "linked"
        return result
    result.discard()
    return None


def _link_shards(task: BlockTask, root: Path, run: str, result: BlockResult) -> bool:
    source = open_store(task.sources[int(task.source[0])])
    first = source.index.row_start[int(task.sample[0])] // task.layout.geometry.shard_rows
    for index, shard in enumerate(task.block.shards):
        final = shard_path(root, shard)
        partial = partial_name(final, run)
        if not take_over(shard_path(source.path, first + index), partial, task.linking):
            return False
        result.partials[final] = partial
    return True


def _holds_exactly(task: BlockTask, shards: list[Path]) -> bool:
    """Say whether shards hold all chunks of a block, and none that was left behind without a bit."""
    chunks = task.layout.geometry.shard_chunks
    wanted = np.zeros((len(shards), chunks), np.bool_)
    for index, length in enumerate(task.length.tolist()):
        for place in task.layout.chunks_of(index, length):
            wanted[place.shard - task.block.shards.start, place.chunk] = True
    try:
        found = [ShardReader(path, chunks).index[:, 0] != MISSING for path in shards]
    except CorruptStoreError:  # copying will tell which samples it hits
        return False
    return np.array_equal(wanted, np.array(found))

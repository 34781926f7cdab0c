"""Cut the destination into tasks, and say which shards can stay as they are and what the rest will take.

Pure but for the sizes of the sources' shard files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np
from typing_extensions import override

from hsstore.codec import usual_ratio
from hsstore.consolidate.task import BlockTask, StoreRef
from hsstore.layout import Layout
from hsstore.location import RemotePath
from hsstore.shard import shard_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import numpy.typing as npt

    from hsstore.consolidate.request import Linking
    from hsstore.consolidate.sources import Source
    from hsstore.dtype import DTypeName
    from hsstore.location import Location

    Int64s = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

PLAN_BYTES = 64
"""Of a sample in the small arrays, its id apart; an upper bound."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where samples go, and where they are now.

    Attributes
    ----------
    length : int64 (n,)
    source : uint16 (n,)
    sample : int64 (n,)
        Index in the source.
    """

    layout: Layout
    codec: Mapping[str, Any]
    length: Int64s
    source: npt.NDArray[np.uint16]
    sample: Int64s


def unchanged_blocks(target: Target, sources: Sequence[Source]) -> Bools:
    """Say which blocks lie in whole shards of one source exactly as they will lie here, shape (blocks,)."""
    layout, sizes = target.layout, target.layout.geometry
    first = layout.block_sample[:-1]
    source = target.source
    alone = np.maximum.reduceat(source, first) == np.minimum.reduceat(source, first)
    same = [_has_shards_like(one, target) for one in sources]
    rows_there = np.zeros(layout.samples, np.int64)
    for one in sources:
        mine = source == one.number
        rows_there[mine] = one.store.plan_array("row_start")[target.sample[mine]]
    counts = np.diff(layout.block_sample)
    moved = layout.row_start - rows_there
    stays = np.logical_and.reduceat(moved == np.repeat(moved[first], counts), first)
    begins = rows_there[first] % sizes.shard_rows == 0
    return np.asarray(alone & np.array(same)[source[first]] & stays & begins)


def _has_shards_like(source: Source, target: Target) -> bool:
    mine, theirs = target.layout.geometry, source.store.spec.geometry
    sizes = (theirs.chunk_shape, theirs.shard_rows) == (mine.chunk_shape, mine.shard_rows)
    return sizes and source.store.spec.codec == target.codec


def stored_bytes(target: Target, sources: Sequence[Source]) -> npt.NDArray[np.float64]:
    """Estimate the encoded bytes of each block, from those that the sources' shards have."""
    sizes = target.layout.geometry
    ratio = usual_ratio(target.codec)
    rate = np.array([_bytes_a_chunk_row(one) for one in sources])
    usual = np.array([usual_ratio(one.store.spec.codec) for one in sources])
    rows = -(-target.length // sizes.chunk_rows) * sizes.chunk_rows
    size = rows * rate[target.source] * usual[target.source] / ratio
    return np.asarray(np.add.reduceat(size, target.layout.block_sample[:-1]))


def _bytes_a_chunk_row(source: Source) -> float:
    """Return the stored bytes of a row of complete samples, their padding included."""
    rows = source.store.spec.layout.chunk_rows
    complete = source.store.length[source.complete].astype(np.int64)
    total = int((-(-complete // rows) * rows).sum())
    return _shard_bytes(source.path) / max(total, 1)


def _shard_bytes(root: Location) -> int:
    if isinstance(root, RemotePath):
        return sum(
            size
            for name, size in shard_path(root, 0).parent.find().items()
            if name.startswith("c.")
        )
    with os.scandir(shard_path(root, 0).parent) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.name.startswith("c."))


def plan_bytes(target: Target, id_bytes: int, metadata_bytes: int) -> int:
    """Return what all but the states takes, at most."""
    tokens = int(target.length.sum())
    return tokens * 5 + len(target.length) * (PLAN_BYTES + id_bytes) + metadata_bytes


class Tasks(Sequence[BlockTask]):
    """The tasks of some blocks, each made when it is asked for.

    Parameters
    ----------
    blocks : int64 (k,)
        Numbers of the blocks to write.
    unchanged : bool (blocks,)
        See `unchanged_blocks`.
    complete : bool (n,)
        Samples that are in the destination already.
    """

    def __init__(
        self,
        target: Target,
        blocks: Int64s,
        *,
        unchanged: Bools,
        complete: Bools,
        digest: npt.NDArray[np.uint64],
        stores: tuple[StoreRef, tuple[StoreRef, ...]],
        run: str,
        dtype: DTypeName,
        linking: Linking,
    ) -> None:
        self._target = target
        self._blocks = blocks
        self._unchanged = unchanged
        self._complete = complete
        self._digest = digest
        self._destination, self._sources = stores
        self._run = run
        self._dtype: DTypeName = dtype
        self._linking: Linking = linking

    @override
    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, index: int) -> BlockTask: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BlockTask]: ...
    @override
    def __getitem__(self, index: int | slice) -> BlockTask | Sequence[BlockTask]:
        if isinstance(index, slice):
            return [self[one] for one in range(len(self))[index]]
        number = int(self._blocks[index])
        layout = self._target.layout
        block = layout.block(number)
        here = slice(block.samples.start, block.samples.stop)
        return BlockTask(
            destination=self._destination,
            sources=self._sources,
            run=self._run,
            dtype=self._dtype,
            codec=dict(self._target.codec),
            layout=Layout(
                layout.geometry,
                layout.row_start[here],
                layout.block_sample[number : number + 2] - here.start,
                layout.block_shard[number : number + 2],
            ),
            block=block,
            length=self._target.length[here],
            source=self._target.source[here],
            sample=self._target.sample[here],
            digest=self._digest[here],
            complete=self._complete[here],
            linking=self._linking if self._unchanged[number] else "never",
        )

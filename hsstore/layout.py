"""Where every sample goes: a pure function of the lengths and a few sizes. No I/O, no state.

::

    row axis   | shard 0             | shard 1             | shard 2 .. 3             |
    blocks     | s0 | s1  | s2 |....| s3 | s4        |....| s5 (longer than a shard).|
    spans      |<---------------- samples 0..3 ----------->|<--- samples 4.. ...

Samples start on a chunk boundary. Inside a span, blocks are cut greedily in sample order; what a
block leaves of its shard stays empty. A sample longer than a shard takes whole shards of its own.
The time is that of a few numpy passes: no Python loop runs over samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

MIN_CHUNK_BYTES = 1_800_000
"""Chunks of 1.8 to 3.7 MB read and compress best."""
MAX_CHUNK_BYTES = 2**31 - 17
"""Blosc takes no larger buffer."""
MANY_HIDDEN = 2048
"""From this width on a chunk holds one slot, so that a slot can be read alone."""
MAX_SHARD_BYTES = 1 << 30
MIN_SHARD_BYTES = 32 << 20
USUAL_SHARDS = 64
"""Stores of up to 64 GiB have about this many shards; larger ones have shards of 1 GiB."""
MAX_SPANS = 256
MIN_SHARDS_A_SPAN = 4
"""A span ends in a shard that is half empty on average: not too many of them."""
SAMPLES_AT_ONCE = 1 << 20
"""Planned in one numpy pass: few enough to keep the memory small, whatever the store's size."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes from which, with the lengths, the whole layout follows."""

    slots: int
    hidden: int
    itemsize: int
    chunk_rows: int
    chunk_slots: int
    shard_rows: int
    span_samples: int

    @property
    def row_bytes(self) -> int:
        """Raw bytes of one row, all slots."""
        return self.slots * self.hidden * self.itemsize

    @property
    def chunk_shape(self) -> tuple[int, int, int]:
        """Shape of one chunk: (rows, slots, hidden)."""
        return (self.chunk_rows, self.chunk_slots, self.hidden)

    @property
    def slot_chunks(self) -> int:
        """Chunks along the slot axis."""
        return self.slots // self.chunk_slots

    @property
    def shard_chunks(self) -> int:
        """Chunks in one shard, all slots."""
        return self.shard_rows // self.chunk_rows * self.slot_chunks


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive samples that are written and committed together."""

    index: int
    samples: range
    shards: range
    """One shard; more only for a single sample longer than a shard."""
    span: int


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where one chunk of a sample lies, and which part of the sample it holds."""

    shard: int
    chunk: int
    """Number in its shard: C order over (row chunk, slot chunk)."""
    rows: slice
    """Rows of the sample; fewer than `chunk_rows` in its last chunks."""
    slots: slice


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one store.

    Attributes
    ----------
    row_start : int64 (n,)
        First row of each sample.
    block_sample : int64 (blocks + 1,)
        First sample of each block, and the number of samples.
    block_shard : int64 (blocks + 1,)
        First shard of each block, and the number of shards.
    """

    geometry: Geometry
    row_start: Int64s
    block_sample: Int64s
    block_shard: Int64s

    @property
    def samples(self) -> int:
        """Samples in the store."""
        return len(self.row_start)

    @property
    def blocks(self) -> int:
        """Blocks in the store."""
        return len(self.block_sample) - 1

    @property
    def shards(self) -> int:
        """Shards in the store."""
        return int(self.block_shard[-1])

    @property
    def rows(self) -> int:
        """Length of the row axis, the empty rows between samples included."""
        return self.shards * self.geometry.shard_rows

    @property
    def spans(self) -> int:
        """Spans in the store."""
        return -(-self.samples // self.geometry.span_samples)

    def block(self, index: int) -> Block:
        """Return one block."""
        first, end = self.block_sample[index : index + 2].tolist()
        shard, shard_end = self.block_shard[index : index + 2].tolist()
        return Block(
            index, range(first, end), range(shard, shard_end), first // self.geometry.span_samples
        )

    def block_of(self, sample: int) -> int:
        """Return the index of the block that holds a sample."""
        return int(np.searchsorted(self.block_sample, sample, side="right")) - 1

    def chunks_of(self, sample: int, length: int) -> Iterator[ChunkPlace]:
        """Yield the chunks of a sample in the order in which they are written."""
        return chunks_at(self.geometry, int(self.row_start[sample]), length)

    def span_slice(self, span: int) -> slice:
        """Return the samples of a span."""
        size = self.geometry.span_samples
        return slice(span * size, min((span + 1) * size, self.samples))


def chunks_at(sizes: Geometry, row_start: int, length: int) -> Iterator[ChunkPlace]:
    """Yield the chunks of a sample, given its first row, in the order in which they are written."""
    first = row_start // sizes.chunk_rows
    for row in range(0, length, sizes.chunk_rows):
        shard, row_chunk = divmod(
            first + row // sizes.chunk_rows, sizes.shard_rows // sizes.chunk_rows
        )
        rows = slice(row, min(row + sizes.chunk_rows, length))
        for slot_chunk in range(sizes.slot_chunks):
            slot = slot_chunk * sizes.chunk_slots
            yield ChunkPlace(
                shard,
                row_chunk * sizes.slot_chunks + slot_chunk,
                rows,
                slice(slot, slot + sizes.chunk_slots),
            )


def choose_geometry(
    length: npt.NDArray[Any],
    *,
    slots: int,
    hidden: int,
    itemsize: int,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    span_samples: int | None = None,
) -> Geometry:
    """Choose the sizes that were not given.

    Parameters
    ----------
    length : int (n,)
        Tokens of each sample, all >= 1.
    chunk_rows, shard_rows, span_samples
        Overrides; `shard_rows` is rounded up to whole chunks.

    Raises
    ------
    InputError
        There is no sample, an empty one, a size is less than 1, or a chunk would be larger than the codec takes.
    """
    sizes = {"chunk_rows": chunk_rows, "shard_rows": shard_rows, "span_samples": span_samples}
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise InputError(f"{name} is {size}: at least 1 is needed")
    if len(length) == 0 or int(np.min(length)) < 1:
        raise InputError("a layout needs at least one sample, each of at least one token")
    chunk_slots = 1 if hidden >= MANY_HIDDEN else slots
    chunk_row_bytes = chunk_slots * hidden * itemsize
    rows = chunk_rows or _power_of_two(-(-MIN_CHUNK_BYTES // chunk_row_bytes))
    if rows * chunk_row_bytes > MAX_CHUNK_BYTES:
        raise InputError(
            f"chunks of {rows} rows are {rows * chunk_row_bytes:,} bytes; the codec takes at most "
            f"{MAX_CHUNK_BYTES:,}: choose fewer rows a chunk"
        )
    row_chunks = int(_chunks(length, rows).sum())
    row_chunk_bytes = rows * slots * hidden * itemsize
    shard_chunks = (
        -(-shard_rows // rows) if shard_rows else _usual_shard_chunks(row_chunks, row_chunk_bytes)
    )
    spans = min(max(row_chunks // shard_chunks // MIN_SHARDS_A_SPAN, 1), MAX_SPANS)
    span = span_samples or -(-len(length) // spans)
    return Geometry(slots, hidden, itemsize, rows, chunk_slots, shard_chunks * rows, span)


def _usual_shard_chunks(row_chunks: int, row_chunk_bytes: int) -> int:
    """Return how many chunks of rows a shard holds, given those of the store and their bytes."""
    least = -(-MIN_SHARD_BYTES // row_chunk_bytes)
    most = max(1, MAX_SHARD_BYTES // row_chunk_bytes)
    return min(max(row_chunks // USUAL_SHARDS, least), most)


def plan_layout(length: npt.NDArray[Any], geometry: Geometry) -> Layout:
    """Lay out samples of the given lengths, shape (n,), each at least 1."""
    step = max(1, SAMPLES_AT_ONCE // geometry.span_samples) * geometry.span_samples
    row_start = np.empty(len(length), np.int64)
    block_sample, block_shard = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)]
    for start in range(0, len(length), step):
        part = slice(start, start + step)
        row_start[part], first, shard_end = _plan_spans(length[part], geometry)
        shards_before = block_shard[-1][-1]
        row_start[part] += shards_before * geometry.shard_rows
        block_sample.append(first + start)
        block_shard.append(shard_end + shards_before)
    block_sample.append(np.array([len(length)]))
    return Layout(geometry, row_start, np.concatenate(block_sample), np.concatenate(block_shard))


def _plan_spans(length: npt.NDArray[Any], geometry: Geometry) -> tuple[Int64s, Int64s, Int64s]:
    """Lay out the samples of some whole spans, as if there were no others.

    Returns
    -------
    row_start : int64 (n,)
    first_sample, shard_end : int64 (blocks,)
        Of each block.
    """
    chunks = _chunks(length, geometry.chunk_rows)
    chunk_end = np.cumsum(chunks)
    chunk_start = chunk_end - chunks
    shard_chunk_rows = geometry.shard_rows // geometry.chunk_rows
    first = _cut_blocks(chunk_start, chunk_end, shard_chunk_rows, geometry.span_samples)
    end = np.append(first[1:], len(length))
    shard_end = np.cumsum(-(-(chunk_end[end - 1] - chunk_start[first]) // shard_chunk_rows))
    # Every row moves by what the blocks before its own leave empty.
    shard_start = np.concatenate([[0], shard_end[:-1]])
    empty = shard_start * shard_chunk_rows - chunk_start[first]
    chunk_start += np.repeat(empty, end - first)
    return chunk_start * geometry.chunk_rows, first, shard_end


def _cut_blocks(
    chunk_start: Int64s, chunk_end: Int64s, shard_chunk_rows: int, span_samples: int
) -> Int64s:
    """Return the first sample of every block, cutting all spans side by side."""
    samples = len(chunk_start)
    # For each sample, the first that does not fit into a shard with it. One that is longer than
    # a shard fits nowhere: it becomes a block alone.
    following = np.searchsorted(chunk_end, chunk_start + shard_chunk_rows, side="right")
    np.maximum(following, np.arange(1, samples + 1), out=following)
    position = np.arange(0, samples, span_samples, dtype=np.int64)
    span_end = np.minimum(position + span_samples, samples)
    cuts = []
    while position.size:
        cuts.append(position)
        position = following[position]
        going_on = position < span_end
        position, span_end = position[going_on], span_end[going_on]
    return np.sort(np.concatenate(cuts))


def _chunks(length: npt.NDArray[Any], chunk_rows: int) -> Int64s:
    return -(-np.asarray(length, dtype=np.int64) // chunk_rows)


def _power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()

"""Read the payload of samples: raw bits, never fill values.

The caller has seen the completion bit before it comes here. A missing chunk or a failed crc under
a set bit can still be honest: the shard may have been replaced since its index was cached. So it
is opened anew once, and only then is the store called corrupt.

A sample is one range of bytes in its shard. The kernel is told of the whole range at once; then
threads read and decode its chunks side by side, each straight to where it belongs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.buffers import BufferPool
from hsstore.decoders import run_all
from hsstore.dtype import bits_dtype
from hsstore.errors import CorruptStoreError
from hsstore.shard import shard_path
from hsstore.shard.reader import ShardReader, shard_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.codec import ChunkCodec
    from hsstore.dtype import DTypeName
    from hsstore.layout import ChunkPlace, Layout

OPEN_SHARDS = 64
"""Shards kept open, with their index, by one reader."""

_pool = BufferPool()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one chunk contributes to what is read."""

    shard: int
    chunk: int
    first_row: int
    """In the chunk."""
    slots: slice | npt.NDArray[np.int64]
    """In the chunk."""
    target: npt.NDArray[Any]
    """Where they go: (rows, selected slots, hidden)."""


class PayloadReader:
    """Random access to the states of samples; safe to use from many threads.

    Parameters
    ----------
    root : Path
        The store.
    length : int (n,)
        Tokens of each sample.
    codec : ChunkCodec
        The store's: `Store.codec`.
    """

    def __init__(
        self,
        root: Path,
        layout: Layout,
        length: npt.NDArray[Any],
        dtype: DTypeName,
        *,
        codec: ChunkCodec,
    ) -> None:
        self._root = root
        self._layout = layout
        self._length = length
        self._bits = bits_dtype(dtype)
        self._codec = codec
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._lock = Lock()

    def read(
        self,
        sample: int,
        *,
        rows: slice = slice(None),
        slots: Sequence[int] | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Read the raw bits of one sample, or a part of them; only the chunks in it are read.

        Parameters
        ----------
        rows : slice
            Of the sample's rows, in steps of 1.
        slots : ints, optional
            Which slots, in this order; all if it is left out.
        out : uint16 or uint32 (rows, slots, hidden), optional
            Where to put them, with any strides. New memory otherwise: memory that earlier results
            no longer use.

        Returns
        -------
        uint16 or uint32 (rows, slots, hidden)
            `out`, if it was given.

        Raises
        ------
        CorruptStoreError
            A chunk is missing, or does not pass its crc32c, also after opening the shard anew.
        ValueError
            `out` has another shape or dtype, or `rows` has steps.
        IndexError
            There is no such slot.
        """
        start, stop, step = rows.indices(int(self._length[sample]))
        if step != 1:
            raise ValueError(f"rows {rows}: only steps of 1")
        wanted = _slot_numbers(slots, self._layout.geometry.slots)
        shape = (max(stop - start, 0), len(wanted), self._layout.geometry.hidden)
        if out is None:
            out = _pool.empty(shape, self._bits)
        elif out.shape != shape or out.dtype != self._bits:
            raise ValueError(f"out is {out.dtype} {out.shape}; needed is {self._bits} {shape}")
        pieces = list(self._pieces(sample, start, wanted, out))
        try:
            self._read(sample, pieces)
        except CorruptStoreError:
            self._forget(pieces)
            self._read(sample, pieces)
        return out

    def read_encoded(self, sample: int, place: ChunkPlace) -> bytes:
        """Read one encoded chunk of a sample as it is stored."""
        try:
            return self._shard(place.shard).read(place.chunk)
        except CorruptStoreError as error:
            raise CorruptStoreError(f"sample {sample}: {error}") from None

    def _pieces(
        self, sample: int, start: int, wanted: npt.NDArray[np.int64], out: npt.NDArray[Any]
    ) -> Iterator[Piece]:
        """Yield what is to be read, chunk by chunk, in the order in which it is stored."""
        stop = start + len(out)
        sizes = self._layout.geometry
        columns = {
            slot_chunk: np.flatnonzero(wanted // sizes.chunk_slots == slot_chunk)
            for slot_chunk in set((wanted // sizes.chunk_slots).tolist())
        }
        for place in self._layout.chunks_of(sample, stop):
            column = columns.get(place.slots.start // sizes.chunk_slots)
            if place.rows.stop <= start or column is None or start == stop:
                continue
            first = max(place.rows.start, start)
            there = out[first - start : place.rows.stop - start]
            for columns_out, slots_in in _runs(column, wanted[column] - place.slots.start):
                yield Piece(
                    place.shard,
                    place.chunk,
                    first - place.rows.start,
                    slots_in,
                    there[:, columns_out],
                )

    def _read(self, sample: int, pieces: list[Piece]) -> None:
        work: list[Callable[[], None]] = []
        for shard, here in groupby(pieces, key=lambda piece: piece.shard):
            of_shard = list(here)
            try:
                reader = self._shard(shard)
                reader.expect([piece.chunk for piece in of_shard])
            except CorruptStoreError as error:
                raise CorruptStoreError(f"sample {sample}: {error}") from None
            work += [partial(self._decode, sample, reader, piece) for piece in of_shard]
        run_all(work)

    def _decode(self, sample: int, reader: ShardReader, piece: Piece) -> None:
        buffer = self._codec.take_buffer()
        try:
            size = reader.read_into(piece.chunk, buffer)
        except CorruptStoreError as error:
            raise CorruptStoreError(f"sample {sample}: {error}") from None
        try:
            self._codec.decode(buffer[:size], piece.target, piece.first_row, piece.slots)
        except CorruptStoreError as error:
            raise CorruptStoreError(
                f"sample {sample}: shard c.{piece.shard}.0.0 chunk {piece.chunk}: {error}"
            ) from None
        self._codec.give_buffer(buffer)

    def _shard(self, shard: int) -> ShardReader:
        with self._lock:
            reader = self._open.pop(shard, None)
            if reader is not None and self._is_stale(reader):
                reader = None  # still in use by other threads, perhaps: closed when unreferenced
            if reader is None:
                reader = ShardReader(
                    shard_path(self._root, shard), self._layout.geometry.shard_chunks
                )
            self._open[shard] = reader
            while len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)
            return reader

    @staticmethod
    def _is_stale(reader: ShardReader) -> bool:
        try:
            return shard_version(reader.path) != reader.version
        except FileNotFoundError:
            return True

    def _forget(self, pieces: list[Piece]) -> None:
        with self._lock:
            for shard in {piece.shard for piece in pieces}:
                self._open.pop(shard, None)


def _slot_numbers(slots: Sequence[int] | None, count: int) -> npt.NDArray[np.int64]:
    if slots is None:
        return np.arange(count)
    numbers = np.array(slots, dtype=np.int64)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < count:
        raise IndexError(f"slots {list(slots)}: the store has slots 0 to {count - 1}")
    return numbers


def _runs(
    columns: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]
) -> Iterator[tuple[slice, slice | npt.NDArray[np.int64]]]:
    """Yield columns of the result that lie side by side, and the slots of a chunk to put there.

    Slots that lie side by side too are a slice: an index array would make a copy of them.
    """
    for run in np.split(np.arange(len(columns)), np.flatnonzero(np.diff(columns) != 1) + 1):
        first, end = int(columns[run[0]]), int(columns[run[-1]]) + 1
        inside = slots[run]
        together = bool((np.diff(inside) == 1).all())
        slot = int(inside[0])
        yield slice(first, end), slice(slot, slot + len(run)) if together else inside

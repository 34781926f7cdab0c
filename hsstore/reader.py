"""Read the payload of samples: raw bits, never fill values.

The caller has seen the completion bit before it comes here. A missing chunk or a failed crc under
a set bit can still be honest: the shard may have been replaced since its index was cached. So it
is opened anew once, and only then is the store called corrupt. The same with a file that a network
file system calls stale (ESTALE), or of which it knows old sizes: another host has replaced it.

A sample is one range of bytes in its shard, or of each shard that it takes. The kernel is told of all
of it at once; then threads copy and decode it side by side, chunk by chunk, each straight to where
it belongs. So the disk has one request to work on, and the cores find in their caches what they decode.

In an object store each of these ranges is one request; all of a sample's are under way together, before any is decoded.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby, zip_longest
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.buffers import shared_pool
from hsstore.decoders import run_all
from hsstore.dtype import bits_dtype
from hsstore.errors import CorruptStoreError
from hsstore.files import refresh_attributes
from hsstore.location import RemotePath
from hsstore.shard import open_shard, shard_path
from hsstore.shard.indexed import MissingShardError
from hsstore.shard.reader import ShardReader, shard_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from hsstore.codec import ChunkCodec
    from hsstore.dtype import DTypeName
    from hsstore.index import PlanColumn, SampleIndex
    from hsstore.layout import ChunkPlace, Layout
    from hsstore.location import Location
    from hsstore.shard.ranges import Read
    from hsstore.shard.remote import RemoteShard

    Slots = slice | npt.NDArray[np.int64]

OPEN_SHARDS = 64
"""Shards kept open, with their index, by one reader."""
KNOWN_SHARDS = 4096
"""In an object store nothing is kept open: this is 25 MB of indexes of 1 GiB shards."""
EXPECTED_READS = 32
"""So many reads ahead the kernel is told of: a window of 64 MB, where samples are longer."""
SPARE_ROWS = 4
"""Whole chunks are decoded where at most one in so many rows of the result is not wanted."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one chunk contributes to what is read."""

    shard: int
    chunk: int
    first_row: int
    """In the chunk."""
    slots: Slots
    """In the chunk."""
    target: npt.NDArray[Any]
    """Where they go: (rows, selected slots, hidden)."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One read of a shard, and what becomes of each of its parts."""

    shard: ShardReader | RemoteShard
    read: Read
    pieces: list[Piece]

    def is_cached(self) -> bool:
        """Guess whether the disk is needed for it."""
        return self.shard.is_cached(self.read.offset)

    def expect(self) -> None:
        """Tell the kernel."""
        self.shard.expect(self.read)


class PayloadReader:
    """Random access to the states of samples; safe to use from many threads.

    Parameters
    ----------
    root : Path or RemotePath
        The store.
    length : int (n,)
        Tokens of each sample.
    codec : ChunkCodec
        The store's: `Store.codec`.
    """

    def __init__(
        self,
        root: Location,
        layout: Layout | SampleIndex,
        length: npt.NDArray[Any] | PlanColumn,
        dtype: DTypeName,
        *,
        codec: ChunkCodec,
    ) -> None:
        self._root = root
        self._layout = layout
        self._length = length
        self._bits = bits_dtype(dtype)
        self._codec = codec
        self._open: OrderedDict[int, ShardReader | RemoteShard] = OrderedDict()
        self._most_open = KNOWN_SHARDS if isinstance(root, RemotePath) else OPEN_SHARDS
        self._lock = Lock()
        self._threads = local()

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
            Where to put them, with any strides. Otherwise memory that earlier results no longer
            use, in the order in which it is decoded: where a chunk holds one slot, all rows of a slot
            lie side by side.

        Returns
        -------
        uint16 or uint32 (rows, slots, hidden)
            `out`, if it was given.

        Raises
        ------
        CorruptStoreError
            A chunk is missing, or does not pass its crc32c, also after opening the shard anew.
        OSError
            The disk failed; ESTALE only when the shard that was opened anew is stale again.
        ValueError
            `out` has another shape or dtype, or `rows` has steps.
        IndexError
            There is no such slot.
        """
        start, stop, step = rows.indices(int(self._length[sample]))
        if step != 1:
            raise ValueError(f"rows {rows}: only steps of 1")
        wanted = _slot_numbers(slots, self._layout.geometry.slots)
        stop = max(start, stop)
        shape = (stop - start, len(wanted), self._layout.geometry.hidden)
        if out is None:
            first, end = self._whole_chunks(start, stop)
            whole = self._memory((end - first, *shape[1:]))
            self._read_or_open_anew(sample, list(self._pieces(sample, first, wanted, whole)))
            return whole[start - first : stop - first]
        if out.shape != shape or out.dtype != self._bits:
            raise ValueError(f"out is {out.dtype} {out.shape}; needed is {self._bits} {shape}")
        self._read_or_open_anew(sample, list(self._pieces(sample, start, wanted, out)))
        return out

    def read_parts(
        self, sample: int, parts: Sequence[tuple[int, Sequence[int], npt.NDArray[Any]]]
    ) -> None:
        """Read several parts of one sample in one pass over its bytes.

        Parameters
        ----------
        parts : (first row, slots, out)
            `out`, uint16 or uint32 (rows, slots, hidden) with any strides, says how many rows. Parts
            that share a chunk decode it once each.

        Raises
        ------
        CorruptStoreError
            As in `read`.
        """
        count = self._layout.geometry.slots
        pieces = [
            piece
            for first, slots, out in parts
            for piece in self._pieces(sample, first, _slot_numbers(slots, count), out)
        ]
        self._read_or_open_anew(sample, sorted(pieces, key=lambda piece: piece.shard))

    def read_encoded(self, sample: int, places: Iterable[ChunkPlace]) -> Iterator[bytes]:
        """Yield encoded chunks of a sample as they are stored.

        Raises
        ------
        CorruptStoreError, OSError, UnreachableError
        """
        try:
            for shard, here in groupby(places, key=lambda place: place.shard):
                yield from self._shard(shard).read_all([place.chunk for place in here])
        except CorruptStoreError as error:
            raise CorruptStoreError(f"sample {sample}: {error}") from None

    def version_anew(self, shard: int) -> str | None:
        """Forget what is kept of a shard; return which version of an object is read from now on, if it is one."""
        self._forget([shard])
        if isinstance(self._root, RemotePath):
            with suppress(MissingShardError):
                return str(self._shard(shard).version)
        return None

    def _whole_chunks(self, start: int, stop: int) -> tuple[int, int]:
        """Widen a range of rows to whole chunks, which are decoded in place, if that costs little."""
        size = self._layout.geometry.chunk_rows
        first, end = start // size * size, -(-stop // size) * size
        spare = start - first + end - stop
        return (first, end) if spare * SPARE_ROWS <= end - first else (start, stop)

    def _memory(self, shape: tuple[int, int, int]) -> npt.NDArray[Any]:
        """Return memory, (rows, slots, hidden), in which the values of a chunk lie side by side."""
        if self._layout.geometry.chunk_slots > 1:
            return shared_pool.empty(shape, self._bits)
        rows, slots, hidden = shape
        return shared_pool.empty((slots, rows, hidden), self._bits).transpose(1, 0, 2)

    def _pieces(
        self, sample: int, start: int, wanted: npt.NDArray[np.int64], out: npt.NDArray[Any]
    ) -> Iterator[Piece]:
        """Yield what is to be read, chunk by chunk, in the order in which it is stored.

        `out` may go on behind the sample's last row, up to the end of its chunk.
        """
        stop = start + len(out)
        sizes = self._layout.geometry
        columns = _columns(wanted, sizes.chunk_slots)
        for place in self._layout.chunks_of(sample, stop):
            if place.rows.stop <= start or start == stop:
                continue
            first = max(place.rows.start, start)
            there = slice(first - start, place.rows.stop - start)
            for columns_out, slots_in in columns.get(place.slots.start, ()):
                target = out[there, columns_out]
                yield Piece(place.shard, place.chunk, first - place.rows.start, slots_in, target)

    def _read_or_open_anew(self, sample: int, pieces: list[Piece]) -> None:
        try:
            self._read(sample, pieces)
        except (CorruptStoreError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ESTALE:
                raise
            self._forget({piece.shard for piece in pieces})
            self._read(sample, pieces)

    def _read(self, sample: int, pieces: list[Piece]) -> None:
        fetches = list(self._fetches(sample, pieces))
        if isinstance(self._root, RemotePath):
            self._take_objects(sample, fetches)
            return
        cold = len(fetches) > 1 and not (fetches[0].is_cached() and fetches[-1].is_cached())
        expected = fetches if cold else []
        for fetch in expected[:EXPECTED_READS]:
            fetch.expect()
        later = zip_longest(fetches, expected[EXPECTED_READS:])
        run_all([partial(self._take, sample, *both) for both in later])

    def _fetches(self, sample: int, pieces: list[Piece]) -> Iterator[Fetch]:
        for shard, here in groupby(pieces, key=lambda piece: piece.shard):
            of_shard = list(here)
            try:
                reader = self._shard(shard)
                reads = reader.plan([piece.chunk for piece in of_shard], self._codec.max_bytes)
            except CorruptStoreError as error:
                raise CorruptStoreError(f"sample {sample}: {error}") from None
            for read in reads:
                yield Fetch(reader, read, [of_shard[part.wanted] for part in read.parts])

    def _take(self, sample: int, fetch: Fetch, later: Fetch | None) -> None:
        """Read and decode, on any thread; tell the kernel what comes later."""
        if later is not None:
            later.expect()
        encoded = self._scratch(fetch.read.nbytes)
        try:
            fetch.shard.read_range(fetch.read, encoded)
        except CorruptStoreError as error:
            raise CorruptStoreError(f"sample {sample}: {error}") from None
        for piece, part in zip(fetch.pieces, fetch.read.parts, strict=True):
            self._decode(sample, piece, encoded[part.start : part.start + part.nbytes])

    def _take_objects(self, sample: int, fetches: list[Fetch]) -> None:
        """Read all ranges side by side, then decode all chunks."""
        from hsstore.shard.remote import RemoteShard, read_ranges  # noqa: PLC0415  # brings fsspec

        shards = [fetch.shard for fetch in fetches if isinstance(fetch.shard, RemoteShard)]
        try:
            ranges = read_ranges(shards, [fetch.read for fetch in fetches])
        except CorruptStoreError as error:
            raise CorruptStoreError(f"sample {sample}: {error}") from None
        run_all(
            [
                partial(self._decode, sample, piece, encoded[part.start : part.start + part.nbytes])
                for fetch, encoded in zip(fetches, ranges, strict=True)
                for piece, part in zip(fetch.pieces, fetch.read.parts, strict=True)
            ]
        )

    def _decode(self, sample: int, piece: Piece, encoded: npt.NDArray[np.uint8]) -> None:
        try:
            self._codec.decode(encoded, piece.target, piece.first_row, piece.slots)
        except CorruptStoreError as error:
            raise CorruptStoreError(
                f"sample {sample}: shard c.{piece.shard}.0.0 chunk {piece.chunk}: {error}"
            ) from None

    def _scratch(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return this thread's memory for encoded bytes; it is the same one every time."""
        scratch: npt.NDArray[np.uint8] | None = getattr(self._threads, "scratch", None)
        if scratch is None or scratch.size < nbytes:
            scratch = self._threads.scratch = np.empty(nbytes, np.uint8)
        return scratch

    def _shard(self, shard: int) -> ShardReader | RemoteShard:
        with self._lock:
            reader = self._open.pop(shard, None)
            if reader is not None and self._is_stale(reader):
                reader = None  # still in use by other threads, perhaps: closed when unreferenced
            if reader is None and not isinstance(self._root, RemotePath):
                reader = self._open_shard(shard)
            if reader is not None:
                self._keep(shard, reader)
                return reader
        reader = self._open_shard(shard)  # others need not wait for the answer
        with self._lock:
            self._keep(shard, reader)
        return reader

    def _open_shard(self, shard: int) -> ShardReader | RemoteShard:
        return open_shard(shard_path(self._root, shard), self._layout.geometry.shard_chunks)

    def _keep(self, shard: int, reader: ShardReader | RemoteShard) -> None:
        self._open[shard] = reader
        while len(self._open) > self._most_open:
            self._open.popitem(last=False)

    @staticmethod
    def _is_stale(reader: ShardReader | RemoteShard) -> bool:
        if not isinstance(reader, ShardReader):
            return False  # it asks for its version with each range
        try:
            return shard_version(reader.path) != reader.version
        except OSError:  # it is gone, or not the file that we opened: opening it will tell
            return True

    def _forget(self, shards: Iterable[int]) -> None:
        for shard in shards:
            with self._lock:
                self._open.pop(shard, None)
            if not isinstance(self._root, RemotePath):
                refresh_attributes(shard_path(self._root, shard))


def _slot_numbers(slots: Sequence[int] | None, count: int) -> npt.NDArray[np.int64]:
    if slots is None:
        return np.arange(count)
    numbers = np.array(slots, dtype=np.int64)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < count:
        raise IndexError(f"slots {list(slots)}: the store has slots 0 to {count - 1}")
    return numbers


def _columns(
    wanted: npt.NDArray[np.int64], chunk_slots: int
) -> dict[int, list[tuple[slice, Slots]]]:
    """Return, by the first slot of a chunk, where its slots go in the result, and which they are.

    Slots that lie side by side too are a slice: an index array would make a copy of them.
    """
    columns: dict[int, list[tuple[slice, Slots]]] = {}
    chunk = wanted // chunk_slots
    cuts = np.flatnonzero(np.diff(chunk)) + 1
    for run in np.split(np.arange(len(wanted)), cuts) if len(wanted) else ():
        first = int(chunk[run[0]]) * chunk_slots
        slots = wanted[run] - first
        slot = int(slots[0])
        together = bool((np.diff(slots) == 1).all())
        place = slice(int(run[0]), int(run[-1]) + 1)
        inside = slice(slot, slot + len(run)) if together else slots
        columns.setdefault(first, []).append((place, inside))
    return columns

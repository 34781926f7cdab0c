"""Read the states of a sample, one row of chunks at a time, and look at every value once."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from hsstore.codec import ChunkCodec
from hsstore.dtype import bits_dtype, is_finite, nan_bits
from hsstore.errors import CorruptStoreError, UnreachableError
from hsstore.report import BadKind
from hsstore.shard import open_shard, shard_path
from hsstore.shard.ahead import ReadAhead
from hsstore.shard.indexed import MissingShardError
from hsstore.shard.ranges import Read
from hsstore.shard.reader import ShardReader
from hsstore.verify.finding import Finding
from hsstore.verify.values import Values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from hsstore.dtype import DTypeName
    from hsstore.layout import ChunkPlace, Layout
    from hsstore.location import Location
    from hsstore.shard.remote import RemoteShard

PIECE_BYTES = 1 << 20
"""Rows whose slots come from several chunks are put together for the hash in pieces that stay in the
cache."""


class BadPayloadError(Exception):
    """The states of a sample cannot be read."""

    def __init__(self, kind: BadKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class StatesReader:
    """Passes over samples of one block; memory is one row of chunks, whatever their length.

    Parameters
    ----------
    layout : Layout
        Of the samples of the block alone.
    codec : dict
        As the store records it.

    Attributes
    ----------
    mean_squares : list of float32 (rows, slots)
        Of some rows of all samples that were looked at.
    """

    def __init__(
        self, root: Location, layout: Layout, dtype: DTypeName, codec: Mapping[str, Any]
    ) -> None:
        self._root = root
        self._layout = layout
        self._dtype: DTypeName = dtype
        sizes = layout.geometry
        self._nan = bits_dtype(dtype).type(nan_bits(dtype))
        self._codec = ChunkCodec(sizes.chunk_shape, dtype, codec)
        self._encoded = np.empty(self._codec.max_bytes, np.uint8)
        self._rows = self._room_for_rows()
        piece_rows = max(PIECE_BYTES // sizes.row_bytes, 1)
        self._piece = np.empty((piece_rows, sizes.slots, sizes.hidden), self._rows.dtype)
        self._ahead = ReadAhead()
        self._shards: dict[int, ShardReader | RemoteShard | BadPayloadError] = {}
        self.mean_squares: list[npt.NDArray[np.float32]] = []

    def _room_for_rows(self) -> npt.NDArray[Any]:
        """Return memory, (rows, slots, hidden), in which every chunk is one piece."""
        sizes, bits = self._layout.geometry, bits_dtype(self._dtype)
        if sizes.chunk_slots == sizes.slots:
            return np.empty((sizes.chunk_rows, sizes.slots, sizes.hidden), bits)
        return np.empty((sizes.slots, sizes.chunk_rows, sizes.hidden), bits).transpose(1, 0, 2)

    def digest(self, index: int, length: int) -> int:
        """Return the digest of one sample's states, given its index in the block and its tokens.

        Raises
        ------
        BadPayloadError
        """
        hasher = xxhash.xxh3_64()
        for _, payload, _ in self._parts(index, length):
            self._hash(hasher, payload)
        return hasher.intdigest()

    def check(self, index: int, length: int, sample: int, digest: int) -> Iterator[Finding]:
        """Yield what is wrong with the states of one sample, given the digest that was recorded.

        Raises
        ------
        BadPayloadError
        """
        slots = self._layout.geometry.slots
        hasher, values = xxhash.xxh3_64(), Values(self._dtype, slots, self.mean_squares)
        for row, payload, finite in self._parts(index, length):
            self._hash(hasher, payload)
            values.look_at(payload, row, is_finite=finite)
        values.compute_norms()
        padding = self._rows[(length - 1) % len(self._rows) + 1 :]
        if hasher.intdigest() != digest:
            detail = f"the states have digest {hasher.hexdigest()}, recorded is {digest:016x}"
            yield Finding(sample, BadKind.DIGEST, detail)
        yield from _judge(values, sample)
        if padding.size and not padding.min() == self._nan == padding.max():
            yield Finding(sample, BadKind.PADDING, "the rows behind the last one are not NaN")

    def shard(self, shard: int) -> ShardReader | RemoteShard:
        """Return an open shard.

        Raises
        ------
        BadPayloadError
            Also every later time.
        """
        if shard not in self._shards:
            self._shards[shard] = self._open(shard)
        opened = self._shards[shard]
        if isinstance(opened, BadPayloadError):
            raise BadPayloadError(opened.kind, str(opened))
        return opened

    def _open(self, shard: int) -> ShardReader | RemoteShard | BadPayloadError:
        path = shard_path(self._root, shard)
        try:
            return open_shard(path, self._layout.geometry.shard_chunks)
        except MissingShardError as error:
            return BadPayloadError(BadKind.MISSING_SHARD, str(error))
        except CorruptStoreError as error:
            return BadPayloadError(BadKind.SHARD_INDEX, str(error))
        except UnreachableError as error:
            return BadPayloadError(BadKind.UNREADABLE, str(error))
        except OSError as error:
            return BadPayloadError(BadKind.UNREADABLE, f"{path.name}: {error.strerror}")

    def _parts(self, index: int, length: int) -> Iterator[tuple[int, npt.NDArray[Any], bool]]:
        """Yield first row, bits (rows, slots, hidden), and whether they are finite, of each row of chunks.

        Each chunk is looked at as soon as it is decoded: the cache still has it.
        """
        places = self._layout.chunks_of(index, length)
        for row, row_of_chunks in groupby(places, key=lambda place: place.rows.start):
            payload, finite = self._rows[: length - row], True
            for place in row_of_chunks:
                self._decode(place)
                finite &= is_finite(payload[:, place.slots], self._dtype)
            yield row, payload, finite

    def _decode(self, place: ChunkPlace) -> None:
        shard = self.shard(place.shard)
        where = f"{shard.path.name} chunk {place.chunk} (from row {place.rows.start})"
        if not shard.has(place.chunk):
            raise BadPayloadError(BadKind.MISSING_CHUNK, f"{where} is missing")
        offset, nbytes = shard.index[place.chunk].tolist()
        if nbytes > self._encoded.size:
            detail = f"{where} has {nbytes:,} bytes, more than any can"
            raise BadPayloadError(BadKind.CHUNK, detail)
        try:
            self._read(shard, Read(offset, nbytes, ()))
            self._codec.decode(self._encoded[:nbytes], self._rows[:, place.slots])
        except CorruptStoreError as error:
            raise BadPayloadError(BadKind.CHUNK, f"{where}: {error}") from error
        except UnreachableError as error:
            raise BadPayloadError(BadKind.UNREADABLE, str(error)) from error
        except OSError as error:
            raise BadPayloadError(BadKind.UNREADABLE, f"{where}: {error.strerror}") from error

    def _read(self, shard: ShardReader | RemoteShard, read: Read) -> None:
        if isinstance(shard, ShardReader):
            shard.read_range(read, self._encoded)
        else:
            self._encoded[: read.nbytes] = np.frombuffer(self._ahead.read(shard, read), np.uint8)

    def _hash(self, hasher: xxhash.xxh3_64, payload: npt.NDArray[Any]) -> None:
        if payload.flags.c_contiguous:
            hasher.update(payload.data)
            return
        for start in range(0, len(payload), len(self._piece)):
            rows = payload[start : start + len(self._piece)]
            piece = self._piece[: len(rows)]
            piece[...] = rows
            hasher.update(piece.data)


def _judge(values: Values, sample: int) -> Iterator[Finding]:
    for rows, kind, what in (
        (values.not_finite, BadKind.NOT_FINITE, "infinities or NaNs in"),
        (values.zero, BadKind.ZERO_ROW, "a slot is all zero in"),
        (values.constant, BadKind.CONSTANT_ROW, "a slot is the same number throughout in"),
    ):
        if rows.count:
            yield Finding(sample, kind, f"{what} {rows}")
    for one, other in values.equal_slots:
        detail = f"slots {one} and {other} are equal in every row"
        yield Finding(sample, BadKind.EQUAL_SLOTS, detail)

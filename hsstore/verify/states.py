"""Read the states of a sample, one row of chunks at a time, and look at every value once."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from hsstore.codec import ChunkCodec
from hsstore.dtype import bits_dtype, infinity_bits, largest_magnitude, nan_bits
from hsstore.errors import CorruptStoreError
from hsstore.report import BadKind
from hsstore.shard import shard_path
from hsstore.shard.reader import ShardReader
from hsstore.verify.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from hsstore.dtype import DTypeName
    from hsstore.layout import ChunkPlace, Layout


class BadPayloadError(Exception):
    """The states of a sample cannot be read."""

    def __init__(self, kind: BadKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(slots=True)
class States:
    """What one pass over a sample's states has seen."""

    hasher: Any = field(default_factory=xxhash.xxh3_64)
    not_finite: list[int] = field(default_factory=list)
    """Rows with an infinity or a NaN."""
    zero: list[int] = field(default_factory=list)
    """Rows that are all zero in one slot or more."""
    padding_touched: bool = False

    def findings(self, sample: int, digest: int) -> Iterator[Finding]:
        """Yield what is wrong, given the digest that was recorded."""
        if self.hasher.intdigest() != digest:
            detail = f"the states have digest {self.hasher.hexdigest()}, recorded is {digest:016x}"
            yield Finding(sample, BadKind.DIGEST, detail)
        if self.not_finite:
            detail = f"infinities or NaNs in {_name_rows(self.not_finite)}"
            yield Finding(sample, BadKind.NOT_FINITE, detail)
        if self.zero:
            detail = f"a slot is all zero in {_name_rows(self.zero)}"
            yield Finding(sample, BadKind.ZERO_ROW, detail)
        if self.padding_touched:
            yield Finding(sample, BadKind.PADDING, "the rows behind the last one are not NaN")


def _name_rows(rows: list[int]) -> str:
    return f"{len(rows)} rows, first in row {rows[0]}" if len(rows) > 1 else f"row {rows[0]}"


class StatesReader:
    """Passes over samples of one block; memory is one row of chunks, whatever their length.

    Parameters
    ----------
    layout : Layout
        Of the samples of the block alone.
    codec : dict
        As the store records it.
    """

    def __init__(
        self, root: Path, layout: Layout, dtype: DTypeName, codec: Mapping[str, Any]
    ) -> None:
        self._root = root
        self._layout = layout
        self._dtype = dtype
        bits = bits_dtype(dtype)
        sizes = layout.geometry
        self._nan = bits.type(nan_bits(dtype))
        self._codec = ChunkCodec(sizes.chunk_shape, dtype, codec)
        self._rows = np.empty((sizes.chunk_rows, sizes.slots, sizes.hidden), bits)
        self._shards: dict[int, ShardReader | BadPayloadError] = {}

    def look_at(self, index: int, length: int) -> States:
        """Read one sample, given its index in the block and its tokens.

        Raises
        ------
        BadPayloadError
        """
        states = States()
        places = self._layout.chunks_of(index, length)
        for row, row_of_chunks in groupby(places, key=lambda place: place.rows.start):
            self._decode(row_of_chunks)
            self._judge(states, row, min(length - row, len(self._rows)))
        return states

    def shard(self, shard: int) -> ShardReader:
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

    def _open(self, shard: int) -> ShardReader | BadPayloadError:
        path = shard_path(self._root, shard)
        if not path.exists():
            return BadPayloadError(BadKind.MISSING_SHARD, f"{path.name}: shard is missing")
        try:
            return ShardReader(path, self._layout.geometry.shard_chunks)
        except CorruptStoreError as error:
            return BadPayloadError(BadKind.SHARD_INDEX, str(error))
        except OSError as error:
            return BadPayloadError(BadKind.UNREADABLE, f"{path.name}: {error.strerror}")

    def _decode(self, row_of_chunks: Iterable[ChunkPlace]) -> None:
        for place in row_of_chunks:
            shard = self.shard(place.shard)
            where = f"{shard.path.name} chunk {place.chunk} (from row {place.rows.start})"
            if not shard.has(place.chunk):
                raise BadPayloadError(BadKind.MISSING_CHUNK, f"{where} is missing")
            try:
                self._codec.decode(shard.read(place.chunk), self._rows[:, place.slots])
            except CorruptStoreError as error:
                raise BadPayloadError(BadKind.CHUNK, f"{where}: {error}") from error
            except OSError as error:
                raise BadPayloadError(BadKind.UNREADABLE, f"{where}: {error.strerror}") from error

    def _judge(self, states: States, row: int, count: int) -> None:
        payload, padding = self._rows[:count], self._rows[count:]
        states.hasher.update(payload.data)
        largest = largest_magnitude(payload, self._dtype)
        not_finite = (largest >= infinity_bits(self._dtype)).any(axis=1)
        zero = (largest == 0).any(axis=1)
        states.not_finite += (row + np.flatnonzero(not_finite)).tolist()
        states.zero += (row + np.flatnonzero(zero)).tolist()
        states.padding_touched |= bool((padding != self._nan).any())

"""Read token ids and loss masks: a few rows out of large arrays, without Zarr.

Both arrays are sharded to a few files; a chunk is 64 Ki rows. Zarr takes milliseconds for any part of one,
and decodes the chunk anew each time. Here the chunks that were read last are kept decoded: the samples
of a block lie side by side.
"""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numcodecs.blosc import decompress

from hsstore.codec.frame import decoded_bytes
from hsstore.errors import CorruptStoreError
from hsstore.files import read_again_if_stale
from hsstore.location import RemotePath
from hsstore.shard import open_shard

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.location import Location
    from hsstore.shard.reader import ShardReader
    from hsstore.shard.remote import RemoteShard

CRC_BYTES = 4
KEPT_CHUNKS = 64
"""Of both arrays together: 10 MiB."""
KEPT_REMOTE_CHUNKS = 512
"""80 MiB: where each is a request, the samples of a shuffled window should find theirs."""


@dataclass(frozen=True, slots=True)
class RowArray:
    """One array along the row axis, as its zarr.json describes it."""

    path: Location
    dtype: np.dtype[Any]
    rows: int
    shard_rows: int
    chunk_rows: int

    @classmethod
    def open(cls, path: Location) -> RowArray:
        """Read the zarr.json of an array that `hsstore.create` made.

        Raises
        ------
        CorruptStoreError
            It is missing, or it describes anything else.
        """
        try:
            metadata = json.loads(read_again_if_stale((path / "zarr.json").read_bytes))
            (rows,) = metadata["shape"]
            (shard_rows,) = metadata["chunk_grid"]["configuration"]["chunk_shape"]
            (sharding,) = metadata["codecs"]
            (chunk_rows,) = sharding["configuration"]["chunk_shape"]
            names = [codec["name"] for codec in sharding["configuration"]["codecs"]]
            dtype = np.dtype(metadata["data_type"]).newbyteorder("<")
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise CorruptStoreError(
                f"array {path.name} is missing or its zarr.json is bad"
            ) from error
        if names != ["bytes", "blosc", "crc32c"]:
            raise CorruptStoreError(f"array {path.name}: codecs {names} are not of this format")
        return cls(path, dtype, rows, shard_rows, chunk_rows)


class RowReader:
    """Reads parts of the row arrays of one store; safe to use from many threads."""

    def __init__(self, root: Location) -> None:
        self._root = root
        self._kept = KEPT_REMOTE_CHUNKS if isinstance(root, RemotePath) else KEPT_CHUNKS
        self._arrays: dict[str, RowArray] = {}
        self._shards: dict[tuple[str, int], ShardReader | RemoteShard] = {}
        self._chunks: OrderedDict[tuple[str, int], npt.NDArray[Any]] = OrderedDict()
        self._lock = Lock()

    def read(self, name: str, where: slice) -> npt.NDArray[Any]:
        """Read some rows into new memory.

        Parameters
        ----------
        where : slice
            Of rows, in steps of 1.

        Raises
        ------
        CorruptStoreError
            A file is missing, or a chunk does not pass its crc32c or does not decode.
        """
        array = self._array(name)
        start, stop, _ = where.indices(array.rows)
        values = np.empty(max(stop - start, 0), array.dtype.newbyteorder("="))
        size = array.chunk_rows
        for chunk in range(start // size, -(-stop // size) if stop > start else 0):
            first = chunk * size
            begin, end = max(start, first), min(stop, first + size)
            part = self._chunk(array, chunk)[begin - first : end - first]
            values[begin - start : end - start] = part
        return values

    def _array(self, name: str) -> RowArray:
        if name not in self._arrays:
            self._arrays[name] = RowArray.open(self._root / name)
        return self._arrays[name]

    def _chunk(self, array: RowArray, chunk: int) -> npt.NDArray[Any]:
        key = (array.path.name, chunk)
        with self._lock:
            if key in self._chunks:
                self._chunks.move_to_end(key)
                return self._chunks[key]
        values = self._decode(array, chunk)
        with self._lock:
            self._chunks[key] = values
            while len(self._chunks) > self._kept:
                self._chunks.popitem(last=False)
        return values

    def _decode(self, array: RowArray, chunk: int) -> npt.NDArray[Any]:
        shard, inside = divmod(chunk, array.shard_rows // array.chunk_rows)
        try:
            encoded = read_again_if_stale(lambda: self._encoded(array, shard, inside))
            if encoded is None:  # as zarr may leave out a chunk of fill values
                return np.zeros(array.chunk_rows, array.dtype)
            return _decode(encoded, array)
        except CorruptStoreError as error:
            raise CorruptStoreError(f"array {array.path.name}: {error}") from None

    def _encoded(self, array: RowArray, shard: int, inside: int) -> bytes | None:
        reader = self._shard(array, shard)
        try:
            return reader.read(inside) if reader.has(inside) else None
        except OSError:
            self._shards.pop((array.path.name, shard), None)
            raise

    def _shard(self, array: RowArray, shard: int) -> ShardReader | RemoteShard:
        key = (array.path.name, shard)
        reader = self._shards.get(key)
        if reader is None:  # several threads may find that: whoever is first has opened it
            chunks = array.shard_rows // array.chunk_rows
            reader = self._shards.setdefault(key, open_shard(array.path / f"c.{shard}", chunks))
        return reader


def _decode(encoded: bytes, array: RowArray) -> npt.NDArray[Any]:
    frame = np.frombuffer(encoded, np.uint8)[:-CRC_BYTES]
    if encoded[-CRC_BYTES:] != struct.pack("<I", google_crc32c.value(frame)):
        raise CorruptStoreError("chunk crc32c does not match")
    values = np.empty(array.chunk_rows, array.dtype)
    if decoded_bytes(frame) != values.nbytes:
        raise CorruptStoreError("chunk is not a Blosc frame of the chunk's size")
    try:
        decompress(frame, values.view(np.uint8))
    except (RuntimeError, ValueError) as error:
        raise CorruptStoreError(f"chunk does not decode: {error}") from error
    return values

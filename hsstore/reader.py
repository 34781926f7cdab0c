"""Read the payload of samples: raw bits, never fill values.

The caller has seen the completion bit before it comes here. A missing chunk or a failed crc under
a set bit can still be honest: the shard may have been replaced since its index was cached. So it
is opened anew once, and only then is the store called corrupt.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.codec import ChunkCodec
from hsstore.dtype import bits_dtype
from hsstore.errors import CorruptStoreError
from hsstore.shard import shard_path
from hsstore.shard.reader import ShardReader, shard_version

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.dtype import DTypeName
    from hsstore.layout import ChunkPlace, Layout

OPEN_SHARDS = 16
"""Shards kept open, with their index, by one reader."""


class PayloadReader:
    """Random access to the states of samples; safe to use from many threads.

    Parameters
    ----------
    root : Path
        The store.
    length : int (n,)
        Tokens of each sample.
    """

    def __init__(
        self, root: Path, layout: Layout, length: npt.NDArray[Any], dtype: DTypeName
    ) -> None:
        self._root = root
        self._layout = layout
        self._length = length
        self._bits = bits_dtype(dtype)
        self._codec = ChunkCodec(self._bits.itemsize)
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._lock = Lock()

    def read(self, sample: int) -> npt.NDArray[Any]:
        """Read the raw bits of one sample.

        Returns
        -------
        uint16 or uint32 (length, slots, hidden)

        Raises
        ------
        CorruptStoreError
            A chunk is missing, or does not pass its crc32c, also after opening the shard anew.
        """
        try:
            return self._read(sample)
        except CorruptStoreError:
            self._forget(sample)
            return self._read(sample)

    def read_encoded(self, sample: int, place: ChunkPlace) -> bytes:
        """Read one encoded chunk of a sample as it is stored."""
        try:
            return self._shard(place.shard).read(place.chunk)
        except CorruptStoreError as error:
            raise CorruptStoreError(f"sample {sample}: {error}") from None

    def _read(self, sample: int) -> npt.NDArray[Any]:
        sizes = self._layout.geometry
        length = int(self._length[sample])
        padded_rows = -(-length // sizes.chunk_rows) * sizes.chunk_rows
        out = np.empty((padded_rows, sizes.slots, sizes.hidden), dtype=self._bits)
        scratch = np.empty(sizes.chunk_shape, dtype=self._bits)
        for place in self._layout.chunks_of(sample, length):
            target = out[place.rows.start : place.rows.start + sizes.chunk_rows, place.slots]
            self._decode(sample, place, target, scratch)
        return out[:length]

    def _decode(
        self,
        sample: int,
        place: ChunkPlace,
        target: npt.NDArray[Any],
        scratch: npt.NDArray[Any],
    ) -> None:
        encoded = self.read_encoded(sample, place)
        direct = target.flags.c_contiguous
        try:
            self._codec.decode(encoded, target if direct else scratch)
        except CorruptStoreError as error:
            raise CorruptStoreError(
                f"sample {sample}: shard c.{place.shard}.0.0 chunk {place.chunk}: {error}"
            ) from None
        if not direct:
            target[...] = scratch

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

    def _forget(self, sample: int) -> None:
        places = self._layout.chunks_of(sample, int(self._length[sample]))
        with self._lock:
            for shard in {place.shard for place in places}:
                self._open.pop(shard, None)

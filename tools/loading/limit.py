"""The least that any loader can do: copy or decode the same states once, into warm memory."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hsstore.decoders import run_all
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tools.loading.contenders import Setting

PIECE_BYTES = 2 << 20


class Copy:
    """Copies the bytes of uncompressed files, a .pt a sample, on all cores, batch after batch into one buffer.

    Nothing is parsed, checked, shifted or padded, and no other process is given anything.
    """

    def __init__(self, setting: Setting) -> None:
        samples = setting.samples
        self._files = [os.open(samples.file(i, ".pt"), os.O_RDONLY) for i in range(samples.count)]
        self._size_bytes = [os.fstat(file).st_size for file in self._files]
        self._rows = [rows - 1 for rows in samples.rows]
        self._batch_size = setting.batch_size
        largest = max(self._size_bytes) * self._batch_size
        self._memory = np.ones(largest, np.uint8)

    def __iter__(self) -> Iterator[int]:
        """Copy batch after batch; yield the rows of each."""
        for first in range(0, len(self._files), self._batch_size):
            samples = range(first, min(first + self._batch_size, len(self._files)))
            run_all([copy for k, sample in enumerate(samples) for copy in self._copies(k, sample)])
            yield sum(self._rows[sample] for sample in samples)

    def _copies(self, place: int, sample: int) -> Iterator[partial[None]]:
        begin = place * max(self._size_bytes)
        for offset in range(0, self._size_bytes[sample], PIECE_BYTES):
            size_bytes = min(PIECE_BYTES, self._size_bytes[sample] - offset)
            piece = self._memory[begin + offset :][:size_bytes]
            yield partial(_copy, self._files[sample], piece, offset)

    def __del__(self) -> None:
        for file in self._files:
            os.close(file)


class Decode:
    """Decodes the chunks of the store, which are in memory, on all cores, batch after batch into one buffer.

    Each to a place of its own, whole: nothing is read, shifted or padded, and the layers of a token do not come
    to lie side by side, which is one more copy.
    """

    def __init__(self, setting: Setting) -> None:
        store = Store.open(setting.samples.store)
        self._codec = store.codec
        self._encoded: list[list[npt.NDArray[np.uint8]]] = []
        for sample, length in enumerate(store.length.tolist()):
            places = store.layout.chunks_of(sample, length)
            chunks = store.payload.read_encoded(sample, places)
            self._encoded.append([np.frombuffer(chunk, np.uint8) for chunk in chunks])
        self._rows = [rows - 1 for rows in setting.samples.rows]
        self._batch_size = setting.batch_size
        most = max(map(len, self._encoded)) * self._batch_size
        self._memory = np.ones((most, *store.spec.geometry.chunk_shape), store.bits)

    def __iter__(self) -> Iterator[int]:
        """Decode batch after batch; yield the rows of each."""
        for first in range(0, len(self._encoded), self._batch_size):
            samples = slice(first, first + self._batch_size)
            chunks = [chunk for sample in self._encoded[samples] for chunk in sample]
            pairs = zip(chunks, self._memory, strict=False)
            run_all([partial(self._codec.decode, *pair) for pair in pairs])
            yield sum(self._rows[samples])


def _copy(file: int, piece: npt.NDArray[np.uint8], offset: int) -> None:
    if os.preadv(file, [piece.data], offset) != piece.size:
        raise RuntimeError(f"a sample's file ends before byte {offset + piece.size}")

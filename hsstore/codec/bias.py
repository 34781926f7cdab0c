"""The filter of `--codec max`, `hsstore.channel_bias`: what every channel's exponents have in common.

Channels of a model differ in scale, and each keeps its own. Taking the usual exponent of its channel
from every value leaves exponents that are alike everywhere, which one entropy table serves well.
Every bit pattern comes back, as nothing is computed but rotations and differences modulo 256.
docs/codecs.md is the specification.

A filtered chunk is::

    rows of filtered values, in C order | bias of each (slot, channel), 1 byte | filtered rows, uint32

Rows behind the filtered ones, which are padding, are as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.dtype import bits_dtype, exponent_bits
from hsstore.errors import CorruptStoreError

if TYPE_CHECKING:
    from types import EllipsisType

    import numpy.typing as npt

    from hsstore.dtype import DTypeName

    Bits = npt.NDArray[Any]
    Bytes = npt.NDArray[np.uint8]
    Selection = slice | npt.NDArray[np.int64] | EllipsisType

COUNT_BYTES = 4
CALIBRATION_ROWS = 128
"""Rows of a chunk, at most, that its biases are taken from."""
PIECE_BYTES = 1 << 18
"""Values are filtered in pieces that stay in the cache."""


@dataclass(frozen=True, slots=True)
class ChannelBias:
    """Filters chunks of one shape.

    Attributes
    ----------
    shape : tuple
        (rows, slots, hidden) of a chunk.
    """

    shape: tuple[int, int, int]
    dtype: DTypeName

    @property
    def tail_bytes(self) -> int:
        """Bytes that follow the values in a filtered chunk."""
        return self.shape[1] * self.shape[2] + COUNT_BYTES

    def apply(self, part: Bits, values: Bits) -> Bytes:
        """Filter the rows of a chunk; the first rows of `values`, (rows, slots, hidden), are set.

        Returns
        -------
        uint8 (tail_bytes,)
        """
        bias = self._calibrate(part)
        top = self._at_the_top(bias)
        width = 8 * part.itemsize
        for rows in self._pieces(len(part)):
            piece = part[rows]
            rotated = values[rows]
            np.left_shift(piece, 1, out=rotated)
            rotated |= piece >> (width - 1)
            rotated -= top
        count = np.array([len(part)], "<u4")
        return np.concatenate([bias.reshape(-1), count.view(np.uint8)])

    def restore(
        self, values: Bits, tail: Bytes, out: Bits, first: int = 0, slots: Selection = ...
    ) -> None:
        """Undo the filter for some rows.

        Parameters
        ----------
        values : uint16 or uint32 (rows, slots, hidden)
            Filtered values of the whole chunk.
        out : as values, (n, selected slots, hidden)
            Is given the rows from `first` on, in any memory order.

        Raises
        ------
        CorruptStoreError
            The tail is not that of a chunk.
        """
        filtered = int(tail[-COUNT_BYTES:].view("<u4")[0])
        if filtered > len(values):
            raise CorruptStoreError(f"chunk has {len(values)} rows, and says {filtered} of them")
        values = values[first : first + len(out)]
        top = self._at_the_top(tail[:-COUNT_BYTES].reshape(self.shape[1:]))[slots]
        filtered = max(min(filtered - first, len(out)), 0)
        width = 8 * values.itemsize
        for rows in self._pieces(filtered):
            biased = values[rows, slots] + top
            np.right_shift(biased, 1, out=out[rows])
            biased <<= width - 1
            out[rows] |= biased
        out[filtered:] = values[filtered:, slots]

    def _calibrate(self, part: Bits) -> Bytes:
        """Return the mean exponent of every channel, (slots, hidden), as the filter takes it away."""
        width, exponent = 8 * part.itemsize, exponent_bits(self.dtype)
        looked_at = part[:: -(-len(part) // CALIBRATION_ROWS)]
        exponents = looked_at >> (width - 1 - exponent) & ((1 << exponent) - 1)
        mean = np.rint(exponents.mean(axis=0, dtype=np.float32)).astype(np.uint8)
        return np.asarray(np.left_shift(mean, 8 - exponent))

    def _at_the_top(self, bias: Bytes) -> Bits:
        """Return biases as they are taken from whole values: in the most significant byte."""
        bits = bits_dtype(self.dtype)
        return np.asarray(bias.astype(bits) << bits.type(8 * bits.itemsize - 8))

    def _pieces(self, rows: int) -> list[slice]:
        row_bytes = self.shape[1] * self.shape[2] * bits_dtype(self.dtype).itemsize
        step = max(PIECE_BYTES // row_bytes, 1)
        return [slice(row, min(row + step, rows)) for row in range(0, rows, step)]

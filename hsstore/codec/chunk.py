"""Chunks of `hidden_states` to bytes and back, as the store's codec says; then a crc32c."""

from __future__ import annotations

import struct
from collections import deque
from threading import local
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from hsstore.codec.bias import ChannelBias
from hsstore.codec.compressor import make_compressor
from hsstore.codec.metadata import DEFAULT_CODEC, codec_metadata, parse_codec
from hsstore.dtype import bits_dtype, nan_bits
from hsstore.errors import CorruptStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from hsstore.codec.bias import Bits, Bytes, Selection
    from hsstore.dtype import DTypeName

CRC_BYTES = 4
KEPT_BUFFERS = 20
"""Buffers for encoded chunks that are kept for the next ones."""


class ChunkCodec:
    """Encode and decode the chunks of one store; safe to use from many threads at once.

    Parameters
    ----------
    shape : tuple
        (rows, slots, hidden) of a chunk.
    metadata : dict, optional
        What the store records of its codec; the default codec if it is left out.

    Raises
    ------
    RefusedError
        This version does not have the codec.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        dtype: DTypeName,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.shape = shape
        self._bits = bits_dtype(dtype)
        self._nan = nan_bits(dtype)
        metadata = metadata or codec_metadata(DEFAULT_CODEC, self._bits.itemsize)
        spec = parse_codec(metadata)
        self._bias = ChannelBias(shape, dtype) if spec.channel_bias else None
        tail_bytes = self._bias.tail_bytes if self._bias else 0
        self._compressor = make_compressor(spec.blosc, shape, self._bits, self._nan, tail_bytes)
        self.max_bytes = self._compressor.max_bytes + CRC_BYTES
        """Bytes of the largest encoded chunk."""
        self._buffers: deque[Bytes] = deque(maxlen=KEPT_BUFFERS)
        self._threads = local()

    def encode(self, part: Bits) -> bytes:
        """Encode one chunk; the last 4 bytes are the crc32c. See `encode_into`."""
        buffer = self.take_buffer()
        encoded = buffer[: self.encode_into(part, buffer)].tobytes()
        self.give_buffer(buffer)
        return encoded

    def encode_into(self, part: Bits, buffer: Bytes) -> int:
        """Encode one chunk straight from the rows of a sample.

        Parameters
        ----------
        part : uint16 or uint32 (at most rows, slots, hidden)
            Raw bits, with any strides; rows that it lacks become NaN.
        buffer : uint8 (at least max_bytes,)

        Returns
        -------
        int
            Bytes of the encoded chunk, its crc32c included.
        """
        if self._bias:
            values = self._scratch()[: -self._bias.tail_bytes].view(self._bits).reshape(self.shape)
            tail = self._bias.apply(part, values)
            size = self._compressor.encode(values[: len(part)], buffer, tail)
        else:
            size = self._compressor.encode(part, buffer, None)
        struct.pack_into("<I", buffer.data, size, google_crc32c.value(buffer[:size]))
        return size + CRC_BYTES

    def take_buffer(self) -> Bytes:
        """Return a buffer for `encode_into`, an old one if there is one."""
        try:
            return self._buffers.pop()
        except IndexError:
            return np.empty(self.max_bytes, np.uint8)

    def give_buffer(self, buffer: Bytes) -> None:
        """Take a buffer back."""
        self._buffers.append(buffer)

    def decode(
        self,
        encoded: bytes | Bytes,
        out: Bits,
        first_row: int = 0,
        slots: Selection = ...,
    ) -> None:
        """Check the crc32c and decode some rows and slots of a chunk.

        Parameters
        ----------
        out : uint16 or uint32 (n, selected slots, hidden)
            Is given the rows from `first_row` on, with any strides. Where it is the whole chunk,
            C-contiguous, nothing is copied.
        slots
            Which slots of the chunk, as an index of that axis.

        Raises
        ------
        CorruptStoreError
            The crc32c, the frame or its size is wrong.
        """
        data = np.frombuffer(encoded, np.uint8)
        frame = data[:-CRC_BYTES]
        if data[-CRC_BYTES:].tobytes() != struct.pack("<I", google_crc32c.value(frame)):
            raise CorruptStoreError("chunk crc32c does not match")
        if self._bias is None and self._is_whole(out, slots):
            self._compressor.decode(frame, out.reshape(-1).view(np.uint8))
            return
        whole = self._compressor.decoded(frame, self._scratch())
        tail_bytes = self._bias.tail_bytes if self._bias else 0
        values = whole[: whole.size - tail_bytes].view(self._bits).reshape(self.shape)
        if self._bias:
            self._bias.restore(values, whole[-tail_bytes:], out, first_row, slots)
        else:
            out[...] = values[first_row : first_row + len(out), slots]

    def _is_whole(self, out: Bits, slots: Selection) -> bool:
        """Say whether a chunk can be decoded into `out` as it is."""
        in_order = slots is ... or (isinstance(slots, slice) and slots == slice(0, self.shape[1]))
        return in_order and out.shape == self.shape and out.flags.c_contiguous

    def _scratch(self) -> npt.NDArray[np.uint8]:
        """Return this thread's memory for one decoded chunk."""
        scratch: Bytes | None = getattr(self._threads, "scratch", None)
        if scratch is None:
            scratch = self._threads.scratch = np.empty(self._compressor.nbytes, np.uint8)
        return scratch

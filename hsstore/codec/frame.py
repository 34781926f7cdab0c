"""Our own encoder of Blosc 1 frames: zstd, byte shuffle, one stream for each byte plane.

libblosc runs zstd's match finder over every byte of a chunk. In hidden states the bytes that hold
mantissa bits are noise, and those that hold the exponent repeat in their frequencies alone. So a
plane that is noise is stored as it is, and the others go through zstd set up as little more than a
Huffman coder. The frame is an ordinary one: every Blosc decoder reads it.

::

    header (16 bytes) | start of each block, int32 | blocks
    whole block  = for each byte plane: length int32, then that many bytes
    last, shorter block = length int32, then all planes in one stream

A stream as long as what it holds is not compressed.
"""

from __future__ import annotations

import struct
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

if TYPE_CHECKING:
    import numpy.typing as npt

    Bits = npt.NDArray[Any]
    Bytes = npt.NDArray[np.uint8]

LARGEST_BLOCK_BYTES = 1 << 20
"""Blocks are half of it to all of it: smaller ones compress worse, larger ones leave the cache."""
ONE_STREAM_BYTES = 1 << 16
"""Smaller arrays are one block of one stream."""
LOOKS, LOOK_BYTES = 4, 2048
"""So much of a plane of the first block is compressed for a try, to tell noise."""

_HEADER = struct.Struct("<BBBBIII")
_LENGTH = struct.Struct("<i")
_BLOSC_VERSION, _ZSTD_VERSION = 2, 1
_SHUFFLED, _STORED, _ONE_STREAM, _ZSTD = 0x01, 0x02, 0x10, 4 << 5


class FrameEncoder:
    """Encodes arrays of one shape; safe to use from many threads at once.

    Parameters
    ----------
    shape : tuple
        (rows, slots, hidden) of the arrays.
    bits : dtype
        uint16 or uint32.
    fill : int
        Bit pattern for the rows that an array lacks.
    tail_bytes : int
        Bytes that follow the array in its frame.
    """

    def __init__(
        self, shape: tuple[int, int, int], bits: np.dtype[Any], fill: int, tail_bytes: int = 0
    ) -> None:
        self._rows, self._row_shape = shape[0], shape[1:]
        self._bits = bits
        self._fill = fill
        row_bytes = shape[1] * shape[2] * bits.itemsize
        self.nbytes = shape[0] * row_bytes + tail_bytes
        """Decoded bytes of a frame."""
        self._split = self.nbytes >= ONE_STREAM_BYTES
        self._block_rows = _block_rows(self._rows, row_bytes) if self._split else self._rows
        self._block_bytes = self._block_rows * row_bytes if self._split else self.nbytes
        self._whole_blocks = self._rows // self._block_rows if self._split else 0
        blocks = -(-self.nbytes // self._block_bytes)
        self._streams_at = _HEADER.size + 4 * blocks
        self.max_bytes = self._streams_at + 4 * bits.itemsize * blocks + self.nbytes
        """Bytes that `encode` may write."""

    def encode(self, part: Bits, frame: Bytes, tail: Bytes | None = None) -> int:
        """Encode one array.

        Parameters
        ----------
        part : uint16 or uint32 (at most rows, slots, hidden)
            Raw bits, rows in any memory order.
        frame : uint8 (max_bytes or more,)
            Where to write the frame.
        tail : uint8 (tail_bytes,), optional

        Returns
        -------
        int
            Bytes of the frame.
        """
        starts = frame[_HEADER.size : self._streams_at].view("<i4")
        position = self._streams_at
        noise: dict[int, bool] = {}
        for block in range(self._whole_blocks):
            starts[block] = position
            first = block * self._block_rows
            rows = part[first : first + self._block_rows]
            position = self._put_planes(rows, frame, position, noise)
        if len(starts) > self._whole_blocks:
            starts[-1] = position
            last = self._gather(part, self._whole_blocks * self._block_rows, tail)
            position = self._put_one_stream(last, frame, position)
        if position > _HEADER.size + self.nbytes:
            return self._store(part, frame, tail)
        self._put_header(frame, 0 if self._split else _ONE_STREAM, position)
        return position

    def _put_planes(self, rows: Bits, frame: Bytes, position: int, noise: dict[int, bool]) -> int:
        """Write a whole block, whose last rows may be missing; return where the next one starts.

        `noise` says which planes are not worth a try; the first whole block of a frame decides.
        """
        size = self._block_bytes // self._bits.itemsize
        last_plane = self._bits.itemsize - 1
        for plane in range(self._bits.itemsize):
            raw = frame[position + 4 : position + 4 + size]
            self._extract(rows, plane, raw)
            # The last plane has the exponents, and padding is worth compressing in all of them.
            sure = plane == last_plane or len(rows) < self._block_rows
            if not sure and plane not in noise:
                noise[plane] = _is_noise(raw)
            position = _put_stream(frame, position, raw, store=not sure and noise[plane])
        return position

    def _extract(self, rows: Bits, plane: int, out: Bytes) -> None:
        """Take one byte of every element, plane 0 being the least significant."""
        there = out[: rows.size].reshape(rows.shape)
        if plane:
            np.right_shift(rows, 8 * plane, out=there, casting="unsafe")
        else:
            np.copyto(there, rows, casting="unsafe")
        out[rows.size :] = self._fill >> 8 * plane & 0xFF

    def _gather(self, part: Bits, first: int, tail: Bytes | None) -> Bytes:
        """Return the bytes of the rows from `first` on, and of the tail, in memory of their own."""
        row_bytes = self._row_shape[0] * self._row_shape[1] * self._bits.itemsize
        array_bytes = (self._rows - first) * row_bytes
        gathered = np.empty(array_bytes + (0 if tail is None else tail.size), np.uint8)
        self._copy_rows(part[first:], gathered[:array_bytes])
        if tail is not None:
            gathered[array_bytes:] = tail
        return gathered

    def _copy_rows(self, part: Bits, out: Bytes) -> None:
        rows = out.view(self._bits).reshape(-1, *self._row_shape)
        rows[: len(part)] = part
        rows[len(part) :] = self._fill

    def _put_one_stream(self, block: Bytes, frame: Bytes, position: int) -> int:
        """Write a block as its planes side by side, then the bytes that are no whole element."""
        itemsize = self._bits.itemsize
        whole = block.size // itemsize * itemsize
        raw = frame[position + 4 : position + 4 + block.size]
        raw[:whole].reshape(itemsize, -1)[...] = block[:whole].reshape(-1, itemsize).T
        raw[whole:] = block[whole:]
        return _put_stream(frame, position, raw)

    def _store(self, part: Bits, frame: Bytes, tail: Bytes | None) -> int:
        """Write a frame without any compression: what it decodes to, behind a header."""
        end = _HEADER.size + self.nbytes
        array_end = end - (0 if tail is None else tail.size)
        self._copy_rows(part, frame[_HEADER.size : array_end])
        if tail is not None:
            frame[array_end:end] = tail
        self._put_header(frame, _STORED, end)
        return end

    def _put_header(self, frame: Bytes, flags: int, frame_bytes: int) -> None:
        _HEADER.pack_into(
            frame.data,
            0,
            _BLOSC_VERSION,
            _ZSTD_VERSION,
            _ZSTD | _SHUFFLED | flags,
            self._bits.itemsize,
            self.nbytes,
            self._block_bytes,
            frame_bytes,
        )


def decoded_bytes(frame: Bytes) -> int:
    """Return the size that the header of a frame promises; -1 where there is no whole header."""
    if frame.size < _HEADER.size:
        return -1
    size: int = _HEADER.unpack_from(frame.data)[4]
    return size


def _block_rows(rows: int, row_bytes: int) -> int:
    """Return the rows of a block: a divisor of all rows if there is one that is large enough."""
    fewest = -(-rows * row_bytes // LARGEST_BLOCK_BYTES)
    for blocks in range(fewest, min(2 * fewest, rows) + 1):
        if rows % blocks == 0:
            return rows // blocks
    return max(rows // fewest, 1)


def _put_stream(frame: Bytes, position: int, raw: Bytes, *, store: bool = False) -> int:
    """Compress, in place, what lies behind its length at `position`; return where it ends."""
    size = raw.size
    if not store:
        packed = _compressor().compress(raw.data)
        if len(packed) < size:
            size = len(packed)
            frame[position + 4 : position + 4 + size] = np.frombuffer(packed, np.uint8)
    _LENGTH.pack_into(frame.data, position, size)
    return position + 4 + size


def _is_noise(plane: Bytes) -> bool:
    """Say whether a plane looks as if compression were lost on it."""
    if plane.size <= 2 * LOOKS * LOOK_BYTES:
        return False
    step = (plane.size - LOOK_BYTES) // (LOOKS - 1)
    looks = np.concatenate([plane[i * step : i * step + LOOK_BYTES] for i in range(LOOKS)])
    return len(_compressor().compress(looks.data)) >= looks.size


_threads = local()


def _compressor() -> zstandard.ZstdCompressor:
    """Return this thread's compressor; its tables are used again for every plane."""
    compressor: zstandard.ZstdCompressor | None = getattr(_threads, "compressor", None)
    if compressor is None:
        # A match finder so poor that it finds padding and little else, then Huffman. A table of 256
        # entries takes no longer than one of 64, and finds half a percent more.
        parameters = zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST,
            window_log=18,
            hash_log=8,
            chain_log=6,
            search_log=1,
            min_match=7,
            target_length=0,
            write_content_size=True,
            write_checksum=False,
        )
        compressor = _threads.compressor = zstandard.ZstdCompressor(compression_params=parameters)
    return compressor

"""One chunk to one frame: by our encoder, by libblosc's, or as it is."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any, Protocol

import numcodecs.blosc
import numpy as np
from numcodecs.blosc import BITSHUFFLE, NOSHUFFLE, SHUFFLE, Blosc, decompress

from hsstore.codec.frame import FrameEncoder, decoded_bytes
from hsstore.errors import CorruptStoreError

if TYPE_CHECKING:
    from hsstore.codec.bias import Bits, Bytes
    from hsstore.codec.metadata import BloscSettings

_SHUFFLES = {"noshuffle": NOSHUFFLE, "shuffle": SHUFFLE, "bitshuffle": BITSHUFFLE}
_OVERHEAD_BYTES = 16
"""A frame of libblosc is at most so much larger than what it holds."""

# Our threads each work on a chunk of their own; Blosc's global pool would serialise them.
numcodecs.blosc.use_threads = False  # type: ignore[attr-defined]  # a documented switch


class Compressor(Protocol):
    """Frames of one size."""

    nbytes: int
    """Decoded bytes of a frame."""
    max_bytes: int
    """Bytes of the largest frame."""

    def encode(self, part: Bits, frame: Bytes, tail: Bytes | None) -> int:
        """Write the frame of an array whose last rows may be missing; return its bytes."""
        ...

    def decode(self, frame: Bytes, out: Bytes) -> None:
        """Decode a frame into `out`, (nbytes,).

        Raises
        ------
        CorruptStoreError
        """
        ...

    def decoded(self, frame: Bytes, scratch: Bytes) -> Bytes:
        """Return what a frame decodes to: in `scratch`, (nbytes,), or where it lies in the frame.

        Raises
        ------
        CorruptStoreError
        """
        ...


def make_compressor(
    blosc: BloscSettings | None,
    shape: tuple[int, int, int],
    bits: np.dtype[Any],
    fill: int,
    tail_bytes: int,
) -> Compressor:
    """Return what encodes arrays of (rows, slots, hidden) and a tail; see `FrameEncoder`."""
    if blosc is None:
        return Uncompressed(shape, bits, fill, tail_bytes)
    if blosc.is_ours:
        return OurBlosc(FrameEncoder(shape, bits, fill, tail_bytes))
    return LibBlosc(blosc, Uncompressed(shape, bits, fill, tail_bytes))


class OurBlosc:
    """Frames of our own encoder, decoded by libblosc."""

    def __init__(self, encoder: FrameEncoder) -> None:
        self.encode = encoder.encode
        self.nbytes = encoder.nbytes
        self.max_bytes = encoder.max_bytes

    def decode(self, frame: Bytes, out: Bytes) -> None:
        """Decode into `out`."""
        _blosc_decode(frame, out)

    def decoded(self, frame: Bytes, scratch: Bytes) -> Bytes:
        """Decode into `scratch`."""
        _blosc_decode(frame, scratch)
        return scratch


class LibBlosc:
    """Frames of libblosc's own encoder."""

    def __init__(self, settings: BloscSettings, plain: Uncompressed) -> None:
        self._blosc = Blosc(
            settings.cname, settings.clevel, _SHUFFLES[settings.shuffle], settings.blocksize
        )
        self._plain = plain
        self.nbytes = plain.nbytes
        self.max_bytes = plain.nbytes + _OVERHEAD_BYTES
        self._threads = local()

    def encode(self, part: Bits, frame: Bytes, tail: Bytes | None) -> int:
        """Write a frame; copies the array first where it is not all there in one piece."""
        if part.nbytes < self.nbytes or not part.flags.c_contiguous:
            whole = self._scratch()
            self._plain.encode(part, whole, tail)
            part = whole.view(part.dtype)  # its itemsize is what Blosc shuffles by
        encoded = np.frombuffer(self._blosc.encode(part), np.uint8)
        frame[: encoded.size] = encoded
        return encoded.size

    def decode(self, frame: Bytes, out: Bytes) -> None:
        """Decode into `out`."""
        _blosc_decode(frame, out)

    def decoded(self, frame: Bytes, scratch: Bytes) -> Bytes:
        """Decode into `scratch`."""
        _blosc_decode(frame, scratch)
        return scratch

    def _scratch(self) -> Bytes:
        scratch: Bytes | None = getattr(self._threads, "scratch", None)
        if scratch is None:
            scratch = self._threads.scratch = np.empty(self.nbytes, np.uint8)
        return scratch


class Uncompressed:
    """No frame: the values themselves."""

    def __init__(
        self, shape: tuple[int, int, int], bits: np.dtype[Any], fill: int, tail_bytes: int
    ) -> None:
        self._shape, self._bits, self._fill = shape, bits, fill
        self._array_bytes = shape[0] * shape[1] * shape[2] * bits.itemsize
        self.nbytes = self.max_bytes = self._array_bytes + tail_bytes

    def encode(self, part: Bits, frame: Bytes, tail: Bytes | None) -> int:
        """Copy the values."""
        rows = frame[: self._array_bytes].view(self._bits).reshape(self._shape)
        rows[: len(part)] = part
        rows[len(part) :] = self._fill
        if tail is not None:
            frame[self._array_bytes : self.nbytes] = tail
        return self.nbytes

    def decode(self, frame: Bytes, out: Bytes) -> None:
        """Copy the values."""
        out[:] = self.decoded(frame, out)

    def decoded(self, frame: Bytes, scratch: Bytes) -> Bytes:  # noqa: ARG002  # others need it
        """Return the values where they are: whoever wants some of them copies them once."""
        if frame.size != self.nbytes:
            raise CorruptStoreError(f"chunk has {frame.size} bytes instead of {self.nbytes}")
        return frame


def _blosc_decode(frame: Bytes, out: Bytes) -> None:
    if decoded_bytes(frame) != out.size:
        raise CorruptStoreError("chunk is not a Blosc frame of the chunk's size")
    try:
        decompress(frame, out)
    except (RuntimeError, ValueError) as error:
        raise CorruptStoreError(f"chunk does not decode: {error}") from error

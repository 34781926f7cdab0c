"""`hsstore.channel_bias` for zarr-python, which finds it by the entry point `zarr.codecs`.

It stands where `bytes` would: array in, bytes out. docs/codecs.md specifies what comes out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast, get_args

import numpy as np
from typing_extensions import override
from zarr.abc.codec import ArrayBytesCodec
from zarr.core.common import parse_named_configuration

from hsstore.codec.bias import COUNT_BYTES, ChannelBias
from hsstore.codec.metadata import CHANNEL_BIAS
from hsstore.dtype import DTypeName, bits_dtype

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer
    from zarr.core.common import JSON


@dataclass(frozen=True)
class ChannelBiasCodec(ArrayBytesCodec):
    """The codec as Zarr v3 knows it; it has no configuration."""

    is_fixed_size = True

    @classmethod
    @override
    def from_dict(cls, data: dict[str, JSON]) -> Self:
        parse_named_configuration(data, CHANNEL_BIAS, require_configuration=False)
        return cls()

    @override
    def to_dict(self) -> dict[str, JSON]:
        return {"name": CHANNEL_BIAS, "configuration": {}}

    @override
    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        return input_byte_length + math.prod(chunk_spec.shape[1:]) + COUNT_BYTES

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        bias, bits = _bias_of(chunk_spec)
        data = np.asarray(chunk_bytes.as_numpy_array()).reshape(-1).view(np.uint8)
        if data.size != math.prod(bias.shape) * bits.itemsize + bias.tail_bytes:
            raise ValueError(f"{CHANNEL_BIAS}: {data.size} bytes are not a chunk {bias.shape}")
        values = data[: -bias.tail_bytes].view(bits).reshape(bias.shape)
        out = np.empty(bias.shape, bits)
        bias.restore(values, data[-bias.tail_bytes :], out)
        decoded = out.reshape(chunk_spec.shape).view(chunk_spec.dtype.to_native_dtype())
        return chunk_spec.prototype.nd_buffer.from_numpy_array(decoded)

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        bias, bits = _bias_of(chunk_spec)
        chunk = np.ascontiguousarray(chunk_array.as_numpy_array()).view(bits).reshape(bias.shape)
        values = np.empty_like(chunk)
        tail = bias.apply(chunk, values)
        encoded = np.concatenate([values.reshape(-1).view(np.uint8), tail])
        return chunk_spec.prototype.buffer.from_array_like(cast("Any", encoded))

    @override
    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return self._decode_sync(chunk_data, chunk_spec)

    @override
    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer | None:
        return self._encode_sync(chunk_data, chunk_spec)


def _bias_of(chunk_spec: ArraySpec) -> tuple[ChannelBias, np.dtype[Any]]:
    """Return the filter of a chunk: its first axis are the rows, all others the channels.

    Raises
    ------
    ValueError
        The elements are not floats that it knows.
    """
    name = chunk_spec.dtype.to_native_dtype().name
    if name not in get_args(DTypeName):
        raise ValueError(f"{CHANNEL_BIAS} is for {', '.join(get_args(DTypeName))}; not for {name}")
    dtype = cast("DTypeName", name)
    rows, *channels = chunk_spec.shape or (1,)
    return ChannelBias((rows, 1, math.prod(channels)), dtype), bits_dtype(dtype)

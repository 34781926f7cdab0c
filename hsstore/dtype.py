"""Element types of hidden states.

Payloads are moved as raw bit patterns (`uint16` or `uint32` views): no conversion can touch a
NaN payload or a sign of zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

DTypeName = Literal["bfloat16", "float16", "float32"]
"""Element types a store may hold."""

_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
_NATIVE: dict[DTypeName, np.dtype[Any]] = {
    "bfloat16": _BFLOAT16,
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}
_INFINITY: dict[DTypeName, int] = {
    "bfloat16": 0x7F80,
    "float16": 0x7C00,
    "float32": 0x7F800000,
}
_SIGN_BIT: dict[DTypeName, int] = {"bfloat16": 0x8000, "float16": 0x8000, "float32": 0x80000000}
_EXPONENT_BITS: dict[DTypeName, int] = {"bfloat16": 8, "float16": 5, "float32": 8}
_NAN: dict[DTypeName, int] = {"bfloat16": 0x7FC0, "float16": 0x7E00, "float32": 0x7FC00000}


def native_dtype(name: DTypeName) -> np.dtype[Any]:
    """Return the numpy dtype that computes with this element type."""
    return _NATIVE[name]


def bits_dtype(name: DTypeName) -> np.dtype[Any]:
    """Return the unsigned integer dtype of the same width: raw bit patterns."""
    return np.dtype(f"<u{_NATIVE[name].itemsize}")


def nan_bits(name: DTypeName) -> int:
    """Return the bit pattern of the canonical quiet NaN: the fill value of `hidden_states`."""
    return _NAN[name]


def largest_magnitude(bits: npt.NDArray[Any], name: DTypeName) -> npt.NDArray[Any]:
    """Return the bits of the largest absolute value along the last axis of raw bit patterns.

    Without its sign bit a pattern compares as its absolute value does, and NaNs above all: the
    result is 0 where all values are zeros, and at least `infinity_bits` where one is not finite.

    Parameters
    ----------
    bits : uint16 or uint32 (..., hidden)

    Returns
    -------
    uint16 or uint32 (...)
    """
    return np.asarray((bits & bits.dtype.type(_SIGN_BIT[name] - 1)).max(axis=-1))


def is_finite(bits: npt.NDArray[Any], name: DTypeName) -> bool:
    """Say whether all values of raw bits, of any shape, are finite; without temporary memory.

    As signed numbers positive values come in the order of their magnitude; as unsigned ones negative
    values do, and above them.
    """
    infinity = infinity_bits(name)
    sign = 1 << (8 * bits.itemsize - 1)
    positive, negative = bits.view(f"<i{bits.itemsize}").max(), bits.max()
    return bool(positive < infinity and negative < sign + infinity)


def exponent_bits(name: DTypeName) -> int:
    """Return the width of the exponent, which lies below the sign bit."""
    return _EXPONENT_BITS[name]


def infinity_bits(name: DTypeName) -> int:
    """Return the bit pattern of +infinity."""
    return _INFINITY[name]

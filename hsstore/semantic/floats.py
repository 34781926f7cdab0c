"""Raw bit patterns as float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.dtype import native_dtype

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.dtype import DTypeName


def to_float32(bits: npt.NDArray[Any], dtype: DTypeName) -> npt.NDArray[np.float32]:
    """Return the values of raw bit patterns, exact; a new array.

    >>> to_float32(np.array([0x3F80], np.uint16), "bfloat16").tolist()
    [1.0]
    """
    if dtype == "bfloat16":  # the upper half of a float32: quicker than a conversion
        wide = bits.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return bits.view(native_dtype(dtype)).astype(np.float32)

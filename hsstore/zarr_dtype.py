"""The data type `bfloat16` for zarr-python.

It lets zarr-python read a store; its name is `bfloat16` of zarr-extensions, and TensorStore reads
it natively.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import ml_dtypes
import numpy as np
from typing_extensions import override
from zarr.core.buffer.cpu import Buffer
from zarr.core.dtype import data_type_registry
from zarr.core.dtype.common import HasEndianness, HasItemSize
from zarr.core.dtype.npy.common import (
    check_json_floatish_str,
    float_from_json_v3,
    float_to_json_v3,
)
from zarr.core.dtype.wrapper import ZDType

if TYPE_CHECKING:
    from zarr.core.dtype.common import DataTypeValidationError
else:
    try:
        from zarr.errors import DataTypeValidationError  # zarr >= 3.2
    except ImportError:  # zarr 3.1
        from zarr.core.dtype.common import DataTypeValidationError

_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, kw_only=True)
class BFloat16(ZDType[Any, Any], HasEndianness, HasItemSize):
    """The zarr-extensions data type `bfloat16`, on top of ml_dtypes (Zarr v3 only)."""

    dtype_cls: ClassVar[type[np.dtype[Any]]] = type(_BFLOAT16)
    _zarr_v3_name: ClassVar[str] = "bfloat16"

    @classmethod
    @override
    def from_native_dtype(cls, dtype: np.dtype[Any]) -> Self:
        if dtype == _BFLOAT16:
            return cls()
        raise DataTypeValidationError(f"not bfloat16: {dtype}")

    @override
    def to_native_dtype(self) -> np.dtype[Any]:
        return _BFLOAT16  # ml_dtypes has the native byte order only

    @classmethod
    @override
    def _from_json_v3(cls, data: Any) -> Self:
        if data == "bfloat16":
            return cls()
        raise DataTypeValidationError(f"not bfloat16: {data!r}")

    @classmethod
    @override
    def _from_json_v2(cls, data: Any) -> Self:
        raise DataTypeValidationError("bfloat16 has no name in Zarr v2")

    @override
    def to_json(self, zarr_format: Literal[2, 3]) -> Any:
        if zarr_format == 3:
            return "bfloat16"
        raise ValueError("bfloat16 needs Zarr v3")

    @override
    def _check_scalar(self, data: object) -> bool:
        return isinstance(data, (int, float, np.floating, np.integer, ml_dtypes.bfloat16))

    @override
    def cast_scalar(self, data: Any) -> Any:
        return ml_dtypes.bfloat16(float(data))

    @override
    def default_scalar(self) -> Any:
        return ml_dtypes.bfloat16(0)

    @override
    def from_json_scalar(self, data: Any, *, zarr_format: Literal[2, 3]) -> Any:
        if isinstance(data, str) and data.startswith("0x"):
            return np.array(int(data, 16), np.uint16).view(_BFLOAT16)[()]
        if check_json_floatish_str(data):
            return ml_dtypes.bfloat16(float(data))
        return ml_dtypes.bfloat16(float_from_json_v3(data))

    @override
    def to_json_scalar(self, data: Any, *, zarr_format: Literal[2, 3]) -> Any:
        return float_to_json_v3(float(data))

    @property
    @override
    def item_size(self) -> int:
        return 2


data_type_registry.register("bfloat16", BFloat16)

LoadedWithZarr31 = Buffer
"""zarr 3.1 collects `zarr.data_type` entry points but never loads them. It does load those of
`zarr.buffer` before it parses any metadata, so one of them names this module; what it finds is
zarr's own buffer class. zarr >= 3.2 does not need it."""

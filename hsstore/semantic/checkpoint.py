"""Read single tensors, and single rows of them, from safetensors files, memory-mapped.

A file is the length of a JSON header (8 bytes), the header, and the tensors behind it. Of a sharded
checkpoint `model.safetensors.index.json` names the file of each tensor.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.dtype import bits_dtype
from hsstore.errors import InputError
from hsstore.semantic.floats import to_float32

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.dtype import DTypeName

INDEX = "model.safetensors.index.json"
LARGEST_HEADER_BYTES = 100_000_000
"""As safetensors itself has it."""
_DTYPES: dict[str, DTypeName] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint; nothing of it is read before it is asked for."""

    name: str
    path: Path
    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    offset_bytes: int
    """From the start of the file."""

    def rows(self, which: npt.NDArray[np.integer[Any]] | slice) -> npt.NDArray[np.float32]:
        """Return rows of a matrix, shape (n, columns).

        Raises
        ------
        InputError
            Its element type is none that states have.
        """
        return to_float32(self._bits[which], _DTYPES[self.dtype])

    def vector(self) -> npt.NDArray[np.float32]:
        """Return a whole tensor of one axis."""
        return self.rows(slice(None))

    @cached_property
    def _bits(self) -> npt.NDArray[Any]:
        if self.dtype not in _DTYPES:
            raise InputError(
                f"{self.path}: {self.name} is stored as {self.dtype}; BF16, F16 and F32 can be read: "
                "give a directory with this tensor unquantised"
            )
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped.madvise(mmap.MADV_RANDOM)  # few rows of many
        dtype = bits_dtype(_DTYPES[self.dtype])
        values = np.frombuffer(mapped, dtype, math.prod(self.shape), self.offset_bytes)
        return values.reshape(self.shape)


def read_tensors(model_dir: Path) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint by name; only headers are read.

    Raises
    ------
    InputError
        It has no safetensors files, or one of them is missing or damaged.
    """
    index = model_dir / INDEX
    if index.is_file():
        files = sorted(set(_json(index.read_bytes(), index)["weight_map"].values()))
    else:
        files = sorted(path.name for path in model_dir.glob("*.safetensors"))
    if not files:
        raise InputError(
            f"{model_dir}: no safetensors files; give the directory of the model's checkpoint"
        )
    return {
        tensor.name: tensor for file in files for tensor in _read_header(model_dir / file).values()
    }


def _read_header(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = _json(file.read(min(size, LARGEST_HEADER_BYTES)), path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    header.pop("__metadata__", None)
    total = path.stat().st_size
    return {name: _tensor(name, path, 8 + size, total, entry) for name, entry in header.items()}


def _tensor(name: str, path: Path, start: int, total: int, entry: Mapping[str, Any]) -> Tensor:
    first, end = entry["data_offsets"]
    if start + end > total:
        raise InputError(f"{path}: cut off: {name} ends at byte {start + end} of {total}")
    return Tensor(name, path, entry["dtype"], tuple(entry["shape"]), start + first)


def _json(content: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise InputError(f"{path}: no safetensors header: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object")
    return value

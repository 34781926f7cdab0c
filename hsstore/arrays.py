"""The one module that opens Zarr: groups and arrays of a store, with durable writes.

`hidden_states` is only declared here; its shards are written by `hsstore.shard`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from typing_extensions import override
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
from zarr.errors import BaseZarrError
from zarr.storage import LocalStore

from hsstore.codec import ChunkCodec
from hsstore.dtype import BFloat16, native_dtype
from hsstore.errors import CorruptStoreError, InputError
from hsstore.files import make_directory, output_errors, write_durably

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    from zarr.core.buffer import Buffer

    from hsstore.dtype import DTypeName
    from hsstore.layout import Geometry

SAMPLES_A_CHUNK = 1 << 16
"""Samples in one chunk of the arrays that the plan fixes."""
ROWS_A_CHUNK = 1 << 16
ROWS_A_SHARD = 1 << 24
"""`input_ids` and `loss_mask`: 64 MiB of int32 a file."""

_KEYS: dict[str, Any] = {
    "name": "default",
    "separator": ".",
}  # all chunks in one directory: one fsync


class DurableStore(LocalStore):
    """A local Zarr store whose every write is fsynced, its directory too, before it returns."""

    @override
    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await asyncio.to_thread(_write, self.root / key, value)

    @override
    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if not await self.exists(key):
            await self.set(key, value)


def _write(path: Path, value: Buffer) -> None:
    make_directory(path.parent)
    write_durably(path, value.to_bytes())


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Shape and storage of one small array."""

    shape: tuple[int, ...]
    dtype: npt.DTypeLike
    dims: tuple[str, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None
    compressed: bool = True
    """Completion arrays are not: after a flipped byte the others can still be read."""


class Arrays:
    """The group of one store and its arrays."""

    def __init__(self, group: zarr.Group) -> None:
        self._group = group
        self._opened: dict[str, zarr.Array[Any]] = {}

    @classmethod
    def create(cls, root: Path, attributes: dict[str, Any]) -> Arrays:
        """Create the root group in an existing, empty directory."""
        with output_errors(root):
            return cls(zarr.create_group(DurableStore(root), attributes=attributes, zarr_format=3))

    @classmethod
    def open(cls, root: Path, *, read_only: bool = True) -> Arrays:
        """Open the root group.

        Raises
        ------
        InputError
            There is no Zarr v3 group.
        """
        try:
            store = DurableStore(root, read_only=read_only)
            return cls(zarr.open_group(store, mode="r" if read_only else "r+", zarr_format=3))
        except (BaseZarrError, FileNotFoundError, NotADirectoryError, KeyError) as error:
            raise InputError(f"{root}: no hsstore store is there ({error})") from None

    @property
    def attributes(self) -> dict[str, Any]:
        """The root group's attributes."""
        return dict(self._group.attrs)

    def add(self, name: str, layout: ArrayLayout) -> None:
        """Declare a small array; every chunk of it carries a crc32c."""
        itemsize = np.dtype(layout.dtype).itemsize
        blosc = BloscCodec(typesize=itemsize, cname="zstd", clevel=3, shuffle="shuffle")
        self._group.create_array(
            name,
            shape=layout.shape,
            dtype=np.dtype(layout.dtype),
            chunks=layout.chunks,
            shards=layout.shards,
            serializer=BytesCodec(),
            compressors=[blosc, Crc32cCodec()] if layout.compressed else [Crc32cCodec()],
            fill_value=0,
            dimension_names=layout.dims,
            chunk_key_encoding=_KEYS,
            config={"write_empty_chunks": True},
        )

    def add_states(
        self, name: str, rows: int, geometry: Geometry, dtype: DTypeName, *, sharded: bool
    ) -> None:
        """Declare an array of states, (rows, slots, hidden), whose fill value is NaN."""
        compressor = ChunkCodec(geometry.itemsize).zarr_metadata["configuration"]
        shard = (geometry.shard_rows, geometry.slots, geometry.hidden)
        self._group.create_array(
            name,
            shape=(rows, geometry.slots, geometry.hidden),
            dtype=BFloat16() if dtype == "bfloat16" else native_dtype(dtype),
            chunks=geometry.chunk_shape if sharded else (max(rows, 1), *shard[1:]),
            shards=shard if sharded else None,
            serializer=BytesCodec(),
            compressors=[BloscCodec(**compressor), Crc32cCodec()],
            fill_value=float("nan"),
            dimension_names=("row", "slot", "hidden"),
            chunk_key_encoding=_KEYS,
            config={"write_empty_chunks": True},
        )

    def write(self, name: str, where: slice, values: npt.NDArray[Any]) -> None:
        """Write part of an array, durably."""
        array = self._array(name)
        with output_errors(self._path(name)):
            array[where] = values

    def read(self, name: str, where: slice = slice(None)) -> npt.NDArray[Any]:
        """Read part of an array along its first axis.

        Raises
        ------
        CorruptStoreError
            A chunk does not pass its crc32c or does not decode.
        """
        try:
            return np.asarray(self._array(name)[where])
        except (ValueError, RuntimeError) as error:
            raise CorruptStoreError(f"array {name}: {error}") from error

    def put_group(self, path: str, attributes: dict[str, Any]) -> None:
        """Create a group inside the store, or replace its attributes, durably."""
        with output_errors(self._path(path)):
            self._group.require_group(path).attrs.put(attributes)

    def group_attributes(self, path: str) -> dict[str, dict[str, Any]]:
        """Return the attributes of every group directly inside a group, by name."""
        parent = self._group[path]
        if not isinstance(parent, zarr.Group):
            raise CorruptStoreError(f"{path} is not a group")
        return {name: dict(group.attrs) for name, group in parent.groups()}

    def _array(self, name: str) -> zarr.Array[Any]:
        if name not in self._opened:
            self._opened[name] = self._open_array(name)
        return self._opened[name]

    def _open_array(self, name: str) -> zarr.Array[Any]:
        try:
            array = self._group[name]
        except (KeyError, ValueError) as error:
            raise CorruptStoreError(f"array {name} is missing or its zarr.json is bad") from error
        if not isinstance(array, zarr.Array):
            raise CorruptStoreError(f"{name} is not an array")
        return array.with_config({"write_empty_chunks": True})

    def _path(self, name: str) -> Path:
        store = self._group.store
        root: Path = store.root  # type: ignore[attr-defined]  # always a DurableStore
        return root / name

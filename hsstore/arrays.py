"""The one module that opens Zarr: groups and arrays of a store, with durable writes.

`hidden_states` is only declared here; its shards are written by `hsstore.shard`.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from typing_extensions import override
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
from zarr.errors import BaseZarrError
from zarr.storage import LocalStore

from hsstore.activity import operation, tick
from hsstore.codec import CHANNEL_BIAS, UNCOMPRESSED
from hsstore.dtype import native_dtype
from hsstore.errors import CorruptStoreError, InputError
from hsstore.files import (
    PARTIAL_SUFFIX,
    make_directory,
    output_errors,
    read_again_if_stale,
    write_durably,
)
from hsstore.location import RemotePath
from hsstore.rows import RowReader
from hsstore.zarr_dtype import BFloat16

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy.typing as npt
    from zarr.abc.codec import ArrayBytesCodec
    from zarr.core.buffer import Buffer

    from hsstore.dtype import DTypeName
    from hsstore.layout import Geometry
    from hsstore.location import Location

SAMPLES_A_CHUNK = 1 << 16
"""Samples in one chunk of the arrays that the plan fixes."""
ROWS_A_CHUNK = 1 << 16
ROWS_A_SHARD = 1 << 24
"""`input_ids` and `loss_mask`: 64 MiB of int32 a file."""
METADATA_CHUNK_BYTES = 1 << 20
METADATA_SHARD_BYTES = 1 << 26

_KEYS: dict[str, Any] = {
    "name": "default",
    "separator": ".",
}  # all chunks in one directory: one fsync


_BAD_METADATA = (BaseZarrError, ValueError, KeyError, TypeError, AttributeError, FileNotFoundError)
"""What zarr raises on a zarr.json that is not JSON, or not what it should be."""


class DurableStore(LocalStore):
    """A local Zarr store whose every write is fsynced, its directory too, before it returns."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        # LocalStore opens itself late, and creates a missing directory then. Opening must change
        # nothing: the store may be missing, or on a read-only mount.
        self._is_open = True

    @override
    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()
        await asyncio.to_thread(_write, self.root / key, value)

    @override
    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if not await self.exists(key):
            await self.set(key, value)

    @override
    def set_sync(self, key: str, value: Buffer) -> None:
        """Write at once: how zarr >= 3.2 writes where all codecs can."""
        self._check_writable()
        _write(self.root / key, value)


def _write(path: Path, value: Buffer) -> None:
    make_directory(path.parent)
    write_durably(path, value.to_bytes())


def _zarr_codecs(codec: Mapping[str, Any]) -> tuple[ArrayBytesCodec, list[BloscCodec]]:
    """Return what a store's codec is to zarr: values to bytes, then how these are compressed."""
    if codec == UNCOMPRESSED:
        return BytesCodec(), []
    if codec["name"] != CHANNEL_BIAS:
        return BytesCodec(), [BloscCodec(**codec["configuration"])]
    from hsstore.zarr_codec import ChannelBiasCodec  # noqa: PLC0415  # few stores have it

    compressor = codec["configuration"]["compressor"]["configuration"]
    return ChannelBiasCodec(), [BloscCodec(**compressor)]


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

    def __init__(self, root: Location, group: zarr.Group) -> None:
        self._root = root
        self._group = group
        self._opened: dict[str, zarr.Array[Any]] = {}
        self._rows = RowReader(root)

    @classmethod
    def create(cls, root: Path) -> Arrays:
        """Create the root group in an existing, empty directory."""
        with output_errors(root):
            return cls(root, zarr.create_group(DurableStore(root), zarr_format=3))

    @classmethod
    def open(cls, root: Location) -> Arrays:
        """Open the root group; nothing is written before `write` or `put_group`.

        Raises
        ------
        InputError
            There is no Zarr v3 group.
        CorruptStoreError
            Its zarr.json is damaged.
        """
        if isinstance(root, RemotePath):
            return cls._open_objects(root)
        with operation("read", root / "zarr.json"):
            if not (root / "zarr.json").is_file():
                raise InputError(f"{root}: no hsstore store is there (it has no zarr.json)")
        try:
            return cls(root, zarr.open_group(DurableStore(root), mode="r+", zarr_format=3))
        except _BAD_METADATA as error:
            raise CorruptStoreError(f"{root / 'zarr.json'} is damaged: {error}") from error

    @classmethod
    def _open_objects(cls, root: RemotePath) -> Arrays:
        from hsstore.zarr_objects import ObjectStore  # noqa: PLC0415  # few stores are remote

        try:
            return cls(root, zarr.open_group(ObjectStore(root), mode="r+", zarr_format=3))
        except FileNotFoundError:
            raise InputError(f"{root}: no hsstore store is there (it has no zarr.json)") from None
        except _BAD_METADATA as error:
            raise CorruptStoreError(f"{root / 'zarr.json'} is damaged: {error}") from error

    @property
    def attributes(self) -> dict[str, Any]:
        """The root group's attributes."""
        return dict(self._group.attrs)

    def put_attributes(self, attributes: dict[str, Any]) -> None:
        """Replace the root group's attributes, durably."""
        with self._writing("zarr.json"):
            self._group.attrs.put(attributes)

    def add(self, name: str, layout: ArrayLayout) -> None:
        """Declare a small array; every chunk of it carries a crc32c."""
        itemsize = np.dtype(layout.dtype).itemsize
        blosc = BloscCodec(typesize=itemsize, cname="zstd", clevel=1, shuffle="shuffle")
        with self._writing(name):
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
            )

    def add_states(
        self,
        name: str,
        rows: int,
        geometry: Geometry,
        dtype: DTypeName,
        codec: Mapping[str, Any],
        *,
        sharded: bool,
    ) -> None:
        """Declare an array of states, (rows, slots, hidden), whose fill value is NaN.

        Parameters
        ----------
        codec : dict
            As `hsstore.codec.codec_metadata` gives it.
        """
        serializer, compressors = _zarr_codecs(codec)
        shard = (geometry.shard_rows, geometry.slots, geometry.hidden)
        with self._writing(name):
            self._group.create_array(
                name,
                shape=(rows, geometry.slots, geometry.hidden),
                dtype=BFloat16() if dtype == "bfloat16" else native_dtype(dtype),
                chunks=geometry.chunk_shape if sharded else (max(rows, 1), *shard[1:]),
                shards=shard if sharded else None,
                serializer=serializer,
                compressors=[*compressors, Crc32cCodec()],
                fill_value=float("nan"),
                dimension_names=("row", "slot", "hidden"),
                chunk_key_encoding=_KEYS,
            )

    def write(self, name: str, where: slice, values: npt.NDArray[Any]) -> None:
        """Write part of an array, durably."""
        array = self._array(name)
        with self._writing(name):
            array[where] = values
        tick()

    def read(self, name: str, where: slice = slice(None)) -> npt.NDArray[Any]:
        """Read part of an array along its first axis.

        Raises
        ------
        CorruptStoreError
            A chunk does not pass its crc32c or does not decode.
        """
        try:
            with operation("read", self._root / name):
                return np.asarray(read_again_if_stale(lambda: self._array(name)[where]))
        except (ValueError, RuntimeError) as error:
            raise CorruptStoreError(f"array {name}: {error}") from error

    def read_rows(self, name: str, where: slice) -> npt.NDArray[Any]:
        """Read part of `input_ids` or `loss_mask`; what was read last is kept.

        Raises
        ------
        CorruptStoreError
        """
        return self._rows.read(name, where)

    def missing_chunks(self, name: str) -> int:
        """Count the chunk files that are missing or empty: zarr reads fill values in their place."""
        array = self._array(name)
        grid = zip(array.shape, array.shards or array.chunks, strict=True)
        expected = math.prod(-(-size // part) for size, part in grid)
        sizes = _chunk_sizes(self._root / name)
        return expected - sum(
            not file.endswith(PARTIAL_SUFFIX) and size > 0 for file, size in sizes.items()
        )

    def put_group(self, path: str, attributes: dict[str, Any]) -> None:
        """Create a group inside the store, or replace its attributes, durably."""
        with self._writing(path):
            if path in self._group:
                self._group.require_group(path).attrs.put(attributes)
            else:  # in one write: a kill leaves no group without its attributes
                self._group.create_group(path, attributes=attributes)

    def group_attributes(self, path: str) -> dict[str, dict[str, Any]]:
        """Return the attributes of every group directly inside a group, by name.

        A directory without a zarr.json is none yet: its writer was killed as it began.
        """
        inside = _groups_in(self._root / path)
        try:
            return {name: dict(self._group[f"{path}/{name}"].attrs) for name in sorted(inside)}
        except _BAD_METADATA as error:
            raise CorruptStoreError(f"a zarr.json in {path} is damaged: {error}") from error

    def _array(self, name: str) -> zarr.Array[Any]:
        if name not in self._opened:
            self._opened[name] = self._open_array(name)
        return self._opened[name]

    def _open_array(self, name: str) -> zarr.Array[Any]:
        try:
            array = self._group[name]
        except _BAD_METADATA as error:
            raise CorruptStoreError(f"array {name} is missing or its zarr.json is bad") from error
        if not isinstance(array, zarr.Array):
            raise CorruptStoreError(f"{name} is not an array")
        # A chunk of fill values is data too; a bitmap chunk, even all false, is the commit point.
        return array.with_config({"write_empty_chunks": True})

    def _writing(self, name: str) -> AbstractContextManager[None]:
        """Say of a disk what is wrong with it; an object store's errors say it themselves."""
        return (
            nullcontext()
            if isinstance(self._root, RemotePath)
            else output_errors(self._root / name)
        )


def _chunk_sizes(array: Location) -> dict[str, int]:
    """Return the sizes of an array's chunk files in bytes, by name."""
    if isinstance(array, RemotePath):
        return {name: size for name, size in array.find().items() if name.startswith("c.")}
    return {file.name: file.stat().st_size for file in array.glob("c.*")}


def _groups_in(path: Location) -> list[str]:
    if isinstance(path, RemotePath):
        parts = (name.split("/") for name in path.find())
        return [group for group, *rest in parts if rest == ["zarr.json"]]
    return [entry.parent.name for entry in path.glob("*/zarr.json")]

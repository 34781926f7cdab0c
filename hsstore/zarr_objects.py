"""Objects for zarr-python, through the same seam as everything else that is remote.

Zarr's own `FsspecStore` would read a missing key from errors that it knows by their types, try nothing again, and
list where it looks for groups.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from typing_extensions import override
from zarr.abc.store import (
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)

from hsstore.errors import InputError
from hsstore.objects.puts import ABSENT
from hsstore.objects.write import put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

    from hsstore.location import RemotePath


class ObjectStore(Store):
    """The objects below a URL; a key is missing only where the object store says so.

    An object that was not read or written through this store is created, and never replaced.
    """

    supports_writes: bool = True
    supports_deletes: bool = False
    supports_listing: bool = False

    def __init__(self, root: RemotePath) -> None:
        super().__init__()
        self.root = root
        self._versions: dict[str, str] = {}
        self._is_open = True

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and self.root == other.root

    @override
    def __hash__(self) -> int:
        return hash(self.root)

    @override
    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        start, stop = _range(byte_range)
        try:
            answer = await asyncio.to_thread((self.root / key).get, start, stop)
        except FileNotFoundError:
            return None
        self._versions[key] = answer.version
        return prototype.buffer.from_bytes(answer.data)

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        reads = [self.get(key, prototype, where) for key, where in key_ranges]
        return list(await asyncio.gather(*reads))

    @override
    async def exists(self, key: str) -> bool:
        try:
            await asyncio.to_thread((self.root / key).get, 0, 1)
        except FileNotFoundError:
            return False
        return True

    @override
    async def set(self, key: str, value: Buffer) -> None:
        url, replaces = str(self.root / key), self._versions.get(key, ABSENT)
        write = partial(put, url, value.to_bytes(), replaces=replaces)
        self._versions[key] = await asyncio.to_thread(write)

    @override
    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if not await self.exists(key):
            await self.set(key, value)

    @override
    async def delete(self, key: str) -> None:
        self._refuse("deletes")

    @override
    def list(self) -> AsyncIterator[str]:
        self._refuse("lists")

    @override
    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        self._refuse("lists")

    @override
    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        self._refuse("lists")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"hsstore {what} no objects: {self.root}")


def _range(where: ByteRequest | None) -> tuple[int, int | None]:
    match where:
        case None:
            return 0, None
        case RangeByteRequest(start, end):
            return start, end
        case OffsetByteRequest(offset):
            return offset, None
        case SuffixByteRequest(suffix):
            return -suffix, None

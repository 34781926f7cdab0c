"""What a task of a view works on: a store that every worker process opens for itself, once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hsstore.errors import InputError
from hsstore.location import RemotePath, locate
from hsstore.store import Store

if TYPE_CHECKING:
    from hsstore.location import Location

KEPT_OPEN = 8
"""Stores that a process keeps open."""


@dataclass(frozen=True, slots=True)
class Source:
    """A store, by its path and its identity; small, and safe to send to other processes."""

    path: str
    """Absolute, or a URL: the workers of a cluster have other working directories."""
    uuid: str

    @classmethod
    def of(cls, store: Store) -> Source:
        """Name an open store."""
        return cls(str(store.location.absolute()), store.spec.store)

    def open(self) -> Store:
        """Return the store, opened by this process before if it is still the same.

        Raises
        ------
        InputError
            It cannot be seen from here, or another one lies there now.
        """
        metadata = locate(self.path) / "zarr.json"
        try:
            version = _version(metadata)
        except OSError as error:
            raise InputError(
                f"{metadata}: {error.strerror}; every Dask worker must see the store under this path"
            ) from None
        store = _open(self.path, version)
        if store.spec.store != self.uuid:
            raise InputError(
                f"{self.path}: another store lies there than when this view was made; make it anew"
            )
        return store


def _version(file: Location) -> tuple[object, ...]:
    if isinstance(file, RemotePath):
        return (file.read_bytes(),)
    status = file.stat()
    return (status.st_dev, status.st_ino, status.st_mtime_ns)


@lru_cache(maxsize=KEPT_OPEN)
def _open(path: str, version: tuple[object, ...]) -> Store:  # noqa: ARG001  # part of the key
    return Store.open(path)

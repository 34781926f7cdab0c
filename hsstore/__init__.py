"""hsstore: hidden states of a target model in one chunked, compressed Zarr store.

>>> import hsstore
>>> store = hsstore.open("demo/store.zarr")  # doctest: +SKIP
>>> store[0].hidden_states.shape  # doctest: +SKIP
(517, 4, 576)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hsstore.create import create_store
    from hsstore.location import Location
    from hsstore.store import Sample, Store

__all__ = ["Sample", "Store", "create_store", "open"]

_HOME = {"Sample": "hsstore.store", "Store": "hsstore.store", "create_store": "hsstore.create"}


def open(path: str | Location) -> Store:  # noqa: A001  # as zarr.open and tarfile.open
    """Open a store; see `hsstore.store.Store.open`."""
    from hsstore.store import Store  # noqa: PLC0415

    return Store.open(path)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # zarr loads `hsstore.zarr_dtype` for every one of its users: that must not import all the rest.
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'hsstore' has no attribute {name!r}")

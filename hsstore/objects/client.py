"""The client of each kind of object store: one a process, on fsspec's own event loop, callable from any thread."""

from __future__ import annotations

import asyncio
import os
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from fsspec.asyn import sync

from hsstore.activity import operation
from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from concurrent.futures import Future
    from typing import Any, TypeAlias

    from hsstore.activity import Kind
    from hsstore.objects.gs_write import GoogleStore
    from hsstore.objects.memory_write import MemoryStore
    from hsstore.objects.s3_write import S3Store

    AnyBackend: TypeAlias = GoogleStore | MemoryStore | S3Store

T = TypeVar("T")


def call(kind: Kind, url: str, work: Callable[[AnyBackend], Awaitable[T]]) -> T:
    """Run a coroutine with the client of a URL, and wait for it.

    After a refusal the next call connects anew: credentials may be there by then, or others.

    Raises
    ------
    Exception
        What the coroutine raises.
    """
    backend = _backend_of(url)
    with operation(kind, url):
        try:
            done: T = sync(backend.loop, work, backend)
        except InputError:
            forget()
            raise
    return done


def start(url: str, work: Callable[[AnyBackend], Coroutine[Any, Any, T]]) -> Future[T]:
    """Run a coroutine with the client of a URL in the background."""
    backend = _backend_of(url)
    return asyncio.run_coroutine_threadsafe(work(backend), backend.loop)


def load_client(url: str) -> None:
    """Load what a URL needs, which takes a while, without connecting."""
    _backend_class(url.partition("://")[0])


def forget() -> None:
    """Have the next call connect anew."""
    _backend.cache_clear()


def _backend_of(url: str) -> AnyBackend:
    return _backend(url.partition("://")[0], os.getpid())


@lru_cache(maxsize=8)
def _backend(protocol: str, process: int) -> AnyBackend:  # noqa: ARG001
    """Connect, once a process: what a fork leaves of a connection is not to be used."""
    return _backend_class(protocol)()


def _backend_class(protocol: str) -> type[AnyBackend]:
    if protocol == "memory":
        from hsstore.objects.memory_write import MemoryStore  # noqa: PLC0415

        return MemoryStore
    if protocol == "gs":
        from hsstore.objects.gs_write import GoogleStore  # noqa: PLC0415  # 300 ms, and an extra

        return GoogleStore
    from hsstore.objects.s3_write import S3Store  # noqa: PLC0415  # 400 ms, and an extra

    return S3Store

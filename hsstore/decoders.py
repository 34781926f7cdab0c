"""Threads that read and decode chunks, shared by all readers of a process."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_THREADS = 8

_pool: ThreadPoolExecutor | None = None
_lock = Lock()


class _Shared:
    """An iterator that several threads advance, one at a time."""

    def __init__(self, tasks: Iterable[Callable[[], None]]) -> None:
        self._tasks = iter(tasks)
        self._lock = Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Callable[[], None]:
        with self._lock:
            return next(self._tasks)


def run_all(tasks: Iterable[Callable[[], None]], most: int) -> None:
    """Call every task, side by side, also on this thread; then raise the first error there was.

    So nothing writes into the caller's memory any more after this returns or raises. A generator makes
    each task when a thread is free for it; it ends when making one fails.

    Parameters
    ----------
    most : int
        There are no more tasks than this.
    """
    helpers = min(_threads(), most) - 1
    if helpers < 1:
        _call(tasks)
        return
    left = _Shared(tasks)
    executor = _executor()
    futures = [executor.submit(_call, left) for _ in range(helpers)]
    try:
        _call(left)
    finally:
        started = [future for future in futures if not future.cancel()]
        wait(started)
    for future in started:
        future.result()


def _call(tasks: Iterable[Callable[[], None]]) -> None:
    """Call what is left; after an error, too, and raise the first one in the end."""
    first: BaseException | None = None
    for task in tasks:
        try:
            task()
        except BaseException as error:  # noqa: BLE001  # raised below
            first = first or error
    if first is not None:
        raise first


def _executor() -> ThreadPoolExecutor:
    global _pool  # noqa: PLW0603  # one a process
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(_threads(), thread_name_prefix="decode")
        return _pool


def _threads() -> int:
    return min(len(os.sched_getaffinity(0)), MAX_THREADS)


def _forget_threads() -> None:
    """Threads do not survive a fork, such as that of a loader's worker process."""
    global _pool, _lock
    _pool, _lock = None, Lock()


os.register_at_fork(after_in_child=_forget_threads)

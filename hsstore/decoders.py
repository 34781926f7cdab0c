"""Threads that read and decode chunks, shared by all readers of a process."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAX_THREADS = 8

_pool: ThreadPoolExecutor | None = None
_lock = Lock()


def run_all(tasks: Sequence[Callable[[], None]]) -> None:
    """Call every task, side by side, also on this thread; then raise the first error there was.

    So nothing writes into the caller's memory any more after this returns or raises.
    """
    helpers = min(_threads(), len(tasks)) - 1
    left = iter(tasks)  # to take the next one is atomic
    if helpers < 1:
        _call(left)
        return
    executor = _executor()
    futures = [executor.submit(_call, left) for _ in range(helpers)]
    try:
        _call(left)
    finally:
        started = [future for future in futures if not future.cancel()]
        wait(started)
    for future in started:
        future.result()


def _call(tasks: Iterator[Callable[[], None]]) -> None:
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

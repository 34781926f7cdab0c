"""Threads that read and decode chunks, shared by all readers of a process."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_THREADS = 8

_pool: ThreadPoolExecutor | None = None
_lock = Lock()


def run_all(tasks: Sequence[Callable[[], None]]) -> None:
    """Call every task, side by side; the first error is raised when all have ended.

    So nothing writes into the caller's memory any more after this returns or raises.
    """
    if min(_threads(), len(tasks)) <= 1:
        for task in tasks:
            task()
        return
    executor = _executor()
    futures = [executor.submit(task) for task in tasks]
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise errors[0]


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

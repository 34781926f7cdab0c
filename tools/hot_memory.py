"""Memory that is as warm as on a machine of one's own, for benchmarks on virtual machines.

A guest that reports its free pages to the host gets them back cold: their first touch costs more
than anything a benchmark wants to measure, and whoever takes the most fresh pages looks slowest.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_ARENA_MAX": "1",
    "NUMPY_MADVISE_HUGEPAGE": "0",
}
"""Makes glibc keep what it has."""
PAGE_BYTES = 4096
KEPT_PAGES = 128
"""One page of so many stays taken: what lies between is too small to be reported as free."""
_NO_HUGE_PAGES, _DONT_NEED = 15, 4


def keep_memory() -> None:
    """Start this program anew with an allocator that keeps its memory, unless it has one."""
    if any(name not in os.environ for name in KEEP_MEMORY):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})  # noqa: S606


@contextmanager
def hot_pages(size_bytes: int) -> Iterator[None]:
    """Keep so much free memory from going back to the host, by a process that sits in it."""
    command = [sys.executable, __file__, str(size_bytes)]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert keeper.stdout is not None  # noqa: S101  # it is a pipe
        keeper.stdout.readline()
        yield
    finally:
        keeper.kill()
        keeper.communicate()


def _hold(size_bytes: int) -> None:
    """Touch pages, give back all but some, and wait until the other side is gone."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(_NO_HUGE_PAGES)
    pages = np.frombuffer(memory, np.uint8)
    pages[::PAGE_BYTES] = 1
    libc = ctypes.CDLL(None)
    for start in range(0, size_bytes, KEPT_PAGES * PAGE_BYTES):
        where = ctypes.c_void_p(pages.ctypes.data + start + PAGE_BYTES)
        libc.madvise(where, ctypes.c_size_t((KEPT_PAGES - 1) * PAGE_BYTES), _DONT_NEED)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _hold(int(sys.argv[1]) // (KEPT_PAGES * PAGE_BYTES) * (KEPT_PAGES * PAGE_BYTES))

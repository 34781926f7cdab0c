"""Memory for decoded samples that is used again as soon as nothing refers to it.

The first touch of a page costs more than decoding into it, and large arrays are given back to the
system when they are freed. So the memory of a dropped array is kept for the next one.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

SMALL_BYTES = 1 << 20
"""Smaller arrays are not worth it: the allocator keeps their memory by itself."""
KEPT_BYTES = 512 << 20
"""Memory that is kept unused, at most."""
KEPT_BUFFERS = 8
ROUND_BYTES = 1 << 20


class BufferPool:
    """Gives out arrays; safe to use from many threads, and while arrays are dropped anywhere."""

    def __init__(self) -> None:
        # Operations on a deque are atomic: a finalizer can run at any moment, and must not wait.
        self._kept: deque[Bytes] = deque()

    @property
    def kept_bytes(self) -> int:
        """Memory that waits for its next use."""
        return sum(memory.size for memory in tuple(self._kept))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised array, C-contiguous.

        Its memory comes back when the array and all its views are gone.
        """
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if nbytes < SMALL_BYTES:
            return np.empty(shape, dtype)
        memory = self._take(nbytes)
        # Views of views refer to the first array over a buffer that is no array: to `owner`.
        owner = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(owner, self._give, memory).atexit = False
        return owner[:nbytes].view(dtype).reshape(shape)

    def _take(self, nbytes: int) -> Bytes:
        for _ in range(len(self._kept)):
            try:
                memory = self._kept.popleft()
            except IndexError:
                break
            if nbytes <= memory.size <= 2 * nbytes:
                return memory
            self._kept.append(memory)
        return np.empty(-(-nbytes // ROUND_BYTES) * ROUND_BYTES, np.uint8)

    def _give(self, memory: Bytes) -> None:
        self._kept.append(memory)
        while len(self._kept) > KEPT_BUFFERS or self.kept_bytes > KEPT_BYTES:
            try:
                self._kept.popleft()
            except IndexError:
                return


shared_pool = BufferPool()
"""Of this process."""

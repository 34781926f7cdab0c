"""A bounded ring of bytes: memory that one thread takes and another gives back."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

ALIGNMENT_BYTES = 64


@dataclass(slots=True)
class _Part:
    offset: int
    size: int
    given_back: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.size


class Ring:
    """Hands out consecutive bytes [offset, offset + size) of a buffer, in the order of a ring."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._parts: deque[_Part] = deque()
        self._changed = threading.Condition()

    def take(self, size_bytes: int, *, wait_seconds: float = 0.0) -> int | None:
        """Return the offset of free bytes, aligned; None where there are none in time."""
        aligned = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        with self._changed:
            self._changed.wait_for(lambda: self._place(aligned) is not None, wait_seconds)
            offset = self._place(aligned)
            if offset is not None:
                self._parts.append(_Part(offset, aligned))
            return offset

    def give_back(self, offset: int) -> None:
        """Free what `take` returned; in any order, though it is reused in the order of the ring."""
        with self._changed:
            next(part for part in self._parts if part.offset == offset).given_back = True
            while self._parts and self._parts[0].given_back:
                self._parts.popleft()
            self._changed.notify_all()

    def used_bytes(self) -> int:
        """Count the bytes that are taken."""
        with self._changed:
            return sum(part.size for part in self._parts)

    def _place(self, size: int) -> int | None:
        if not self._parts:
            return 0 if size <= self.size_bytes else None
        head, tail = self._parts[-1].end, self._parts[0].offset
        wrapped = self._parts[-1].offset < tail
        if head + size <= (tail if wrapped else self.size_bytes):
            return head
        return 0 if not wrapped and size <= tail else None

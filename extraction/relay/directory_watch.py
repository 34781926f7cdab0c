"""Wake up when names come or go in a directory: inotify, so that nobody has to poll."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# From <sys/inotify.h>.
_MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _IGNORED = 0x80, 0x100, 0x200, 0x400, 0x8000
_MOVED_FROM, _ONLY_DIRECTORY = 0x40, 0x0100_0000
_EVENT: Final = struct.Struct("@iIII")
_BUFFER_BYTES: Final = 64 << 10

UNWATCHED_SECONDS: Final = 0.1
"""How often to look at what cannot be watched: a directory that is not there yet."""


class DirectoryWatch:
    """Tells when something has changed in a directory, also in one that is made later."""

    def __init__(self, path: Path) -> None:
        self._path = os.fsencode(path)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watching = False
        self._next = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._read)

    def next_change(self) -> asyncio.Event:
        """Return what the next change sets: to be asked for before one looks at the directory."""
        if self._descriptor >= 0 and not self._watching:
            mask = _MOVED_TO | _MOVED_FROM | _CREATE | _DELETE | _DELETE_SELF | _ONLY_DIRECTORY
            self._watching = (
                self._libc.inotify_add_watch(self._descriptor, ctypes.c_char_p(self._path), mask)
                >= 0
            )
        return self._next

    async def wait(self, change: asyncio.Event, timeout_seconds: float) -> None:
        """Wait for a change, or until it is time to look anyway."""
        longest = timeout_seconds if self._watching else min(UNWATCHED_SECONDS, timeout_seconds)
        try:
            async with asyncio.timeout(longest):
                await change.wait()
        except TimeoutError:
            return

    def wake(self) -> None:
        """Have everybody look who waits."""
        self._next.set()
        self._next = asyncio.Event()

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        self.wake()

    def _read(self) -> None:
        events = os.read(self._descriptor, _BUFFER_BYTES)
        at = 0
        while at < len(events):
            _, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            if mask & _IGNORED:  # the directory was removed
                self._watching = False
        self.wake()

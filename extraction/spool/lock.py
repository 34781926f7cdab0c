"""A lock that its holder's death releases, and whose state anybody may ask.

`flock` proves life also across containers, where process ids mean nothing. A release removes the
file; whoever locks a file that is no longer the one at its path tries again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING, Any, Final

from extraction.spool.errors import SpoolBusyError

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_SECONDS: Final = 0.5
"""A probe holds the lock for an instant; only a holder keeps it longer than this."""


class FileLock:
    """An exclusive `flock` on `path`, held until `release` or until this process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path, *, mode: int, holder: dict[str, Any]) -> FileLock:
        """Take the lock and leave `holder` in the file, for those who are refused.

        Raises
        ------
        SpoolBusyError
            Somebody holds it; the message quotes what the holder left.
        OSError
            There is no room for what the holder says. It is not held then.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            if _lock(descriptor, fcntl.LOCK_EX) and _is_at(descriptor, path):
                break
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise SpoolBusyError(f"{path} is held by another process: {read_holder(path)}")
            time.sleep(0.01)
        lock = cls(path, descriptor)
        try:
            os.fchmod(descriptor, mode)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        except OSError:  # no room: who tries again must not find us in the way
            lock.release()
            raise
        return lock

    def release(self) -> None:
        """Remove the file and unlock it. May be called twice."""
        if self._descriptor < 0:
            return
        if _is_at(self._descriptor, self._path):  # else it is somebody else's by now
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1


def is_held(path: Path) -> bool:
    """Tell whether a live process holds the lock at `path`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def read_holder(path: Path) -> dict[str, Any]:
    """Read what the holder said of itself; empty where it said nothing."""
    try:
        holder = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

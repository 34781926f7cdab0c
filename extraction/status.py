"""What a run says about itself, in shared memory: written by the worker, read by anyone.

A page is a small mapped file with a sequence lock: readers never block the writer, and still see
the last state when the writer hangs or is gone.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from hsstore.spec import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE_BYTES = 64 << 10
MESSAGE_CHARACTERS = 8000
"""Of a longer message only the beginning is kept; even escaped it fits the page."""
_PREFIX, _SUFFIX = "run-", ".status"
_HEADER = struct.Struct("<QQ")  # sequence (odd while being written), length


class RunStatus(Record):
    """One state of a run. Bytes are raw (uncompressed) unless the name says otherwise."""

    run: str
    phase: Literal[
        "starting", "reading data", "waiting for server", "extracting", "stopping", "ended"
    ] = "starting"
    updated_seconds: float = 0.0
    """Unix time of this state."""
    samples: int = 0
    """In the store's plan."""
    complete: int = 0
    """Committed by earlier runs."""
    failed: int = 0
    """Given up by earlier runs."""
    complete_now: int = 0
    """Committed by this run."""
    tokens_now: int = 0
    """Appended by this run, committed or not."""
    bytes_now: int = 0
    bytes_committed_now: int = 0
    bytes_stored_now: int = 0
    """Encoded size of what `bytes_committed_now` counts raw."""
    tokens_pending: int = 0
    """Not yet appended."""
    in_flight: int = 0
    in_flight_cap: int = 0
    open_blocks: int = 0
    failed_now: int = 0
    retries: int = 0
    spool_used_bytes: int = 0
    spool_budget_bytes: int = 0
    message: str = ""
    """The last thing worth knowing, for people."""
    exit_code: int | None = None
    """Set once, when the run has ended."""


class StatusPage:
    """A mapped page that holds one `RunStatus`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, PAGE_BYTES)
        finally:
            os.close(descriptor)

    @classmethod
    def create(cls, directory: Path) -> Self:
        """Create an empty page in a directory in shared memory; remove those of dead creators.

        The page is locked for the life of this process.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone_in(directory):
            for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
                _remove_if_dead(path)
            lock, name = tempfile.mkstemp(_SUFFIX, _PREFIX, directory)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            os.posix_fallocate(lock, 0, PAGE_BYTES)  # an error here, not a SIGBUS later
            page = cls(Path(name))
        except OSError:
            Path(name).unlink()
            os.close(lock)
            raise
        page._lock = lock
        return page

    def write(self, status: RunStatus) -> None:
        """Publish a state."""
        body = _body(status)
        sequence = _HEADER.unpack_from(self._map)[0] | 1
        _HEADER.pack_into(self._map, 0, sequence, 0)
        self._map[_HEADER.size : _HEADER.size + len(body)] = body
        _HEADER.pack_into(self._map, 0, sequence + 1, len(body))

    def read(self) -> RunStatus | None:
        """Return the last state, or None before the first or when a writer died in a write."""
        for _ in range(100):
            sequence, length = _HEADER.unpack_from(self._map)
            body = bytes(self._map[_HEADER.size : _HEADER.size + length])
            if sequence % 2 == 0 and _HEADER.unpack_from(self._map)[0] == sequence:
                return RunStatus.model_validate_json(body) if length else None
            time.sleep(0.001)
        return None

    def remove(self) -> None:
        """Unmap and delete the page."""
        self._map.close()
        self.path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Keep others out, who would take a page for dead that is not locked yet."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_if_dead(path: Path) -> None:
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        except BlockingIOError:
            return  # its run lives
        finally:
            os.close(descriptor)


def _body(status: RunStatus) -> bytes:
    """Encode a state so that it fits the page; only a message can be too long."""
    body = status.model_dump_json().encode()
    if len(body) + _HEADER.size <= PAGE_BYTES:
        return body
    return _body(status.model_copy(update={"message": status.message[:MESSAGE_CHARACTERS]}))

"""One dump while it is being written: its file, and which rows have arrived."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from extraction.spool.directory import FREE
from extraction.spool.errors import CaptureError, ErrorReason
from extraction.spool.free import FreeFiles
from extraction.spool.memory import headroom_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from extraction.spool.directory import SpoolDirectory
    from extraction.spool.dump import DumpLayout, DumpMetadata
    from extraction.spool.names import RequestId


class Coverage:
    """Which of the rows [0, total) have been seen, as disjoint intervals.

    >>> seen = Coverage(10)
    >>> seen.add(4, 10)
    >>> seen.add(0, 5)
    >>> seen.complete
    True
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._intervals: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> None:
        """Mark the rows [start, stop)."""
        if start == stop:
            return
        apart = [(low, high) for low, high in self._intervals if high < start or stop < low]
        touching = [one for one in self._intervals if one not in apart]
        merged = (
            min([start, *(low for low, _ in touching)]),
            max([stop, *(high for _, high in touching)]),
        )
        self._intervals = sorted([*apart, merged])

    @property
    def complete(self) -> bool:
        """Whether every row has been seen."""
        return self._intervals == [(0, self._total)]

    def describe(self) -> str:
        """Say which rows there are, for people."""
        have = ", ".join(f"[{low}, {high})" for low, high in self._intervals)
        return f"have {have or 'none'} of [0, {self._total})"


class Capture:
    """The file `<rid>.part`, reserved in full before the first byte is written.

    It is opened for each write: a server may have more captures than descriptors to spare. It is not
    mapped: to fault every page in takes longer than to copy it.
    """

    def __init__(
        self,
        rid: RequestId,
        directory: SpoolDirectory,
        layout: DumpLayout,
        metadata: DumpMetadata,
    ) -> None:
        """Reserve the file, in place of a free one where there is one.

        Raises
        ------
        CaptureError
            FULL: no room for it. ENGINE: another process of the server is writing it.
        """
        self.coverage = Coverage(layout.rows)
        self._path = directory.part(rid)
        self._finished = directory.finished(rid)
        self._layout = layout
        if self._path.exists():  # ours are in memory: this is another process's of the server
            raise CaptureError(ErrorReason.ENGINE, "the server computes this request twice at once")
        descriptor = reserve_file(self._path, directory, layout.size_bytes)
        try:
            write_all(descriptor, layout.header(metadata), 0)
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def write(self, start: int, hidden: npt.NDArray[Any], input_ids: npt.NDArray[Any]) -> None:
        """Store the rows [start, start + n); rows written again replace what was there.

        Raises
        ------
        CaptureError
            MISMATCH: rows beyond T, or arrays of another shape or item size.
        """
        rows = len(input_ids)
        want = (rows, *self._layout.shape[1:])
        item = self._layout.item
        if input_ids.ndim != 1 or hidden.shape != want or hidden.dtype.itemsize != item.itemsize:
            raise CaptureError(
                ErrorReason.MISMATCH,
                f"got {hidden.dtype} {hidden.shape}, expected {item} {want}",
            )
        if start < 0 or start + rows > self._layout.rows:
            raise CaptureError(
                ErrorReason.MISMATCH,
                f"rows [{start}, {start + rows}) of a request of {self._layout.rows} tokens",
            )
        if not rows:
            return
        states = np.ascontiguousarray(hidden.view(item))
        ids = np.ascontiguousarray(input_ids, "<i4")
        # Its client may have removed it: then `finish` says so, or who asks before.
        with contextlib.suppress(FileNotFoundError), self._opened() as descriptor:
            row_bytes = self._layout.row_bytes
            write_all(descriptor, states.data, self._layout.hidden_offset + start * row_bytes)
            write_all(descriptor, ids.data, self._layout.ids_offset + start * ids.itemsize)
        self.coverage.add(start, start + rows)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def still_wanted(self) -> bool:
        """Tell whether the file is there: its client may have removed it to say no."""
        return self._path.exists()

    def finish(self) -> None:
        """Give the file its final name.

        Raises
        ------
        FileNotFoundError
            Its client has removed it.
        """
        self._path.rename(self._finished)

    def drop(self) -> None:
        """Give the file up; its memory is free when this returns."""
        self._path.unlink(missing_ok=True)


def reserve_file(path: Path, directory: SpoolDirectory, size_bytes: int) -> int:
    """Make a file of a spool, in place of a free one where there is one; returns its descriptor.

    Raises
    ------
    CaptureError
        FULL: no room for it. Nothing is left of it then.
    """
    free = FreeFiles(directory.path / FREE)
    free.take(size_bytes, path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, directory.file_mode)
        with _alone_in(free.path):
            _reserve(descriptor, free, size_bytes)
    except (CaptureError, OSError):
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Keep the server's other processes out: two that look first could both take the last room."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, free: FreeFiles, size_bytes: int) -> None:
    """Make the file exactly this large, with all its pages, or refuse.

    What is reserved cannot fail in the middle of a request, nor kill what reads the dump.
    """
    os.ftruncate(descriptor, size_bytes)
    missing_bytes = size_bytes - os.fstat(descriptor).st_blocks * 512
    if missing_bytes <= 0:
        return  # every page is there, and to ask for them again takes a look at each
    while missing_bytes > (room_bytes := headroom_bytes(free.path)):
        if not free.drop_largest():
            raise CaptureError(
                ErrorReason.FULL, f"{missing_bytes} bytes needed, {room_bytes} may be taken"
            )
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise CaptureError(ErrorReason.FULL, f"reserving {size_bytes} bytes: {error}") from None


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at an offset."""
    left = memoryview(data).cast("B")
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written

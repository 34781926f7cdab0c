"""Write one shard file in a single pass, with memory of a few chunks whatever its size."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from hsstore.activity import operation
from hsstore.files import (
    PARTIAL_SUFFIX,
    output_errors,
    publish,
    start_writing,
    wait_for_writing,
)
from hsstore.shard.index import MISSING, empty_index, encode_index

if TYPE_CHECKING:
    from pathlib import Path

WINDOW_BYTES = 16 << 20
"""At most two of these are in memory only: a slow disk slows the writer down, piece by piece. Else
the kernel would collect gigabytes, and the fsync in the end would take minutes."""


class ShardWriter:
    """Append encoded chunks to `<shard>.<run>.partial`; publish them under the shard's name.

    Nothing is visible to readers before `publish`, and everything is durable after it.
    """

    def __init__(self, final: Path, run: str, chunks: int) -> None:
        self._final = final
        self._partial = final.with_name(f"{final.name}.{run}{PARTIAL_SUFFIX}")
        self._index = empty_index(chunks)
        self._offset = 0
        self._sent_bytes = 0
        with output_errors(final), operation("open", self._partial):
            self._file = self._partial.open("wb", buffering=0)

    @property
    def bytes_written(self) -> int:
        """Bytes appended so far."""
        return self._offset

    def append(self, chunk: int, encoded: bytes | memoryview) -> None:
        """Append one encoded chunk.

        Parameters
        ----------
        chunk : int
            Its number in the shard: C order over (row chunk, slot chunk).
        """
        with output_errors(self._final), operation("write", self._partial):
            self._write_all(encoded)
        self._index[chunk] = (self._offset, len(encoded))
        self._offset += len(encoded)
        with output_errors(self._final):
            self._send_windows()

    def drop(self, chunk: int) -> None:
        """Take a chunk out of the index, if it is there; its bytes stay unused."""
        self._index[chunk] = MISSING

    def _send_windows(self) -> None:
        """Have the disk begin with each window that is full, and wait for the one before."""
        file = self._file.fileno()
        while self._offset - self._sent_bytes >= WINDOW_BYTES:
            start_writing(file, self._sent_bytes, WINDOW_BYTES, self._partial)
            if earlier := self._sent_bytes:
                wait_for_writing(file, earlier - WINDOW_BYTES, WINDOW_BYTES, self._partial)
            self._sent_bytes += WINDOW_BYTES

    def _write_all(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file.fileno(), view) :]

    def seal(self) -> None:
        """Append the index and fsync: the file is complete and durable, but has no name yet."""
        with output_errors(self._final):
            with operation("write", self._partial):
                self._write_all(encode_index(self._index))
            with operation("fsync", self._partial):
                os.fsync(self._file.fileno())
                self._file.close()

    def publish(self) -> None:
        """Give the sealed file its name, durably."""
        with output_errors(self._final):
            publish(self._partial, self._final)

    def discard(self, *, abort: bool = True) -> None:  # noqa: ARG002  # of uploads
        """Give up: close and remove the partial file, as far as the disk lets us.

        Called after an error, which must not be hidden by another: a disk that turned read-only
        refuses this too, and whoever claims the span next removes what stays.
        """
        with suppress(OSError):
            self._file.close()
        with suppress(OSError), operation("unlink", self._partial):
            self._partial.unlink(missing_ok=True)

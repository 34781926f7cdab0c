"""Write one shard into an object store: it is sent in parts while it grows, and is no object before it is published.

What an fsync is on a disk is here the store's answer to the last part, and a rename is the end of the upload: so the
order of a commit is the same, and a kill at any moment leaves no part of a shard that anybody could read.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from hsstore.activity import operation
from hsstore.errors import HsstoreError
from hsstore.files import output_errors, stage_parent
from hsstore.objects.write import PART_BYTES, SentUpload, Upload, abort, find_uploads
from hsstore.shard.index import MISSING, empty_index, encode_index

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hsstore.location import RemotePath


class ShardUpload:
    """Append encoded chunks; what fills no part yet is in a file without a name, which no kill leaves behind.

    Parameters
    ----------
    stage : Path, optional
        The directory of that file, of PART_BYTES at most; TMPDIR if it is left out.
    replaces : str
        The version of the object that it is to replace, or ABSENT.

    Attributes
    ----------
    sent : SentUpload or None
        Once it is sealed.
    """

    def __init__(
        self, final: RemotePath, chunks: int, stage: Path | None, *, replaces: str
    ) -> None:
        self._stage = stage_parent(stage)
        self._index = empty_index(chunks)
        self._offset = 0
        self.sent: SentUpload | None = None
        with output_errors(self._stage), operation("open", self._stage):
            self._file = tempfile.TemporaryFile(dir=self._stage, buffering=0)  # noqa: SIM115
        self._upload = Upload(str(final), replaces=replaces)

    @property
    def bytes_written(self) -> int:
        """Bytes appended so far."""
        return self._offset

    def append(self, chunk: int, encoded: bytes | memoryview) -> None:
        """Append one encoded chunk, as `ShardWriter` does; waits while too many parts are under way."""
        self._write(encoded)
        self._index[chunk] = (self._offset, len(encoded))
        self._offset += len(encoded)

    def drop(self, chunk: int) -> None:
        """Take a chunk out of the index, if it is there; its bytes stay unused."""
        self._index[chunk] = MISSING

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            with output_errors(self._stage), operation("write", self._stage):
                view = view[self._file.write(view[: PART_BYTES - self._file.tell()]) :]
            if self._file.tell() == PART_BYTES:
                self._send()

    def _send(self) -> None:
        self._upload.part(self._take)

    def _take(self) -> bytes:
        with output_errors(self._stage), operation("read", self._stage):
            self._file.seek(0)
            data = self._file.read()
            self._file.seek(0)
            self._file.truncate()
        return data

    def seal(self) -> None:
        """Append the index, and wait until the store has all parts."""
        self._write(encode_index(self._index))
        if self._file.tell():
            self._send()
        self.sent = self._upload.finish()
        self._file.close()

    def publish(self) -> None:
        """Make it an object, if that of its name is still the one that it replaces.

        Raises
        ------
        ConflictError
        """
        if self.sent is None:
            raise ValueError("a shard is sealed before it is published")
        self.sent.complete()

    def discard(self, *, abort: bool = True) -> None:
        """Give up, as far as the store lets us; what stays is no object, and the next owner removes it.

        Parameters
        ----------
        abort : bool
            Say so to the store; one that is away would be asked for minutes.
        """
        self._file.close()
        if not abort:
            self._upload.cancel()
            return
        with suppress(HsstoreError):  # the error that came before must not be hidden by another
            self._upload.abort()


def abort_uploads(root: RemotePath, is_ours: Callable[[int], bool]) -> None:
    """Give up what was begun of shards of the store at `root`, and not published.

    Parameters
    ----------
    is_ours : callable
        Says of a shard whether it may be done. Asked behind the listing: what an heir begins later is not in it.

    Raises
    ------
    UnreachableError, InputError
    """
    start = f"{root}/hidden_states/c."
    for upload in find_uploads(start):
        number = upload.url.removeprefix(start).partition(".")[0]
        if number.isdigit() and is_ours(int(number)):
            abort(upload)

"""An object as a file that is only read: for what takes files and may seek in them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from typing_extensions import override

from hsstore.objects.answer import Request
from hsstore.objects.read import read

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES = 8 << 20
"""Brought by one request, and kept until another one is needed."""


def open_object(url: str) -> io.BufferedReader:
    """Open an object; all of it is of the version that is there now.

    Raises
    ------
    NoSuchObjectError, UnreachableError, InputError
        As `read`; so does reading, and OSError (ESTALE) where the object was replaced.
    """
    return io.BufferedReader(_Object(url))


class _Object(io.RawIOBase):
    def __init__(self, url: str) -> None:
        self._url = url
        self._first = 0
        self._position = 0
        answer = read(Request(url, 0, PIECE_BYTES))
        self._piece, self._size, self._version = answer.data, answer.size_bytes, answer.version

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"{self._url}: cannot seek to {start + offset}")
        self._position = start + offset
        return self._position

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(view.nbytes, self._size - self._position)
        if wanted <= 0:
            return 0
        if not self._first <= self._position < self._first + len(self._piece):
            self._bring()
        start = self._position - self._first
        part = memoryview(self._piece)[start : start + wanted]
        view[: part.nbytes] = part
        self._position += part.nbytes
        return part.nbytes

    def _bring(self) -> None:
        first = self._position
        request = Request(self._url, first, first + PIECE_BYTES, self._version)
        self._piece, self._first = b"", first  # two are never held
        self._piece = read(request).data

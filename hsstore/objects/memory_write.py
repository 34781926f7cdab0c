"""Fsspec's memory, written to: conditions are kept as a store does that can be trusted."""

from __future__ import annotations

import uuid
from threading import Lock

from typing_extensions import override

from hsstore.objects.memory import MemoryBackend, version_of
from hsstore.objects.puts import ABSENT, ConflictError, Part, Put, Stat, UploadId, WritableBackend

_lock = Lock()
_tokens: dict[tuple[str, str], str] = {}
"""Of each put, by URL and version."""
_begun: dict[UploadId, tuple[str, dict[int, bytes]]] = {}
"""Uploads: their token, and their parts by number."""


class MemoryStore(MemoryBackend, WritableBackend):
    """Writes what any `fsspec.filesystem("memory")` of this process reads."""

    @override
    async def put(self, put: Put, checksum: str, token: str) -> str:
        with _lock:
            return self._put(put, token)

    def _put(self, put: Put, token: str) -> str:
        file = self.file(put.url)
        if (version_of(file) if file else ABSENT) != put.replaces:
            raise ConflictError(put.url)
        self._fs.pipe_file(put.url, put.data)
        version = version_of(self.file(put.url))
        _tokens[put.url, version] = token
        return version

    @override
    async def head(self, url: str) -> Stat | None:
        with _lock:
            file = self.file(url)
            if file is None:
                return None
            version = version_of(file)
        return Stat(file.size, version, file.created.timestamp(), _tokens.get((url, version), ""))

    @override
    async def begin(self, url: str, token: str, replaces: str) -> UploadId:
        upload = UploadId(url, uuid.uuid4().hex)
        _begun[upload] = (token, {})
        return upload

    @override
    async def send(
        self, upload: UploadId, number: int, data: bytes, checksum: str, before: Part | None
    ) -> Part:
        if upload not in _begun:
            raise ConflictError(upload.url, upload_is_gone=True)
        _begun[upload][1][number] = data
        return Part(number, "", checksum)

    @override
    async def complete(self, upload: UploadId, parts: tuple[Part, ...], replaces: str) -> str:
        with _lock:
            if upload not in _begun:
                raise ConflictError(upload.url, upload_is_gone=True)
            token, data = _begun[upload]
            whole = b"".join(data[part.number] for part in parts)
            version = self._put(Put(upload.url, whole, replaces), token)
            del _begun[upload]
            return version

    @override
    async def abort(self, upload: UploadId) -> None:
        _begun.pop(upload, None)

    @override
    async def uploads(self, url: str, after: str) -> tuple[list[UploadId], str]:
        return [upload for upload in _begun if upload.url.startswith(url)], ""

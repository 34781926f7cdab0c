"""Any file system of fsspec. What it says of versions is asked for by a request of its own."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.asyn import get_loop
from typing_extensions import override

from hsstore.objects.answer import Answer, Backend, Request, missing, stale

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_VERSION = ("generation", "etag", "ETag", "mtime", "updated", "LastModified", "created")
"""What file systems tell objects of one name apart by; each has some of these."""
_MODIFIED = ("updated", "mtime", "LastModified", "created")


class FsspecBackend(Backend):
    """Reads through one file system object.

    Parameters
    ----------
    protocol : str
        Such as "gs".
    """

    def __init__(self, protocol: str) -> None:
        self._fs: Any = fsspec.filesystem(
            protocol, use_listings_cache=False, skip_instance_cache=True
        )

    @property
    def loop(self) -> AbstractEventLoop:
        """The event loop that the file system belongs to."""
        loop: AbstractEventLoop = self._fs.loop if self._fs.async_impl else get_loop()
        return loop

    @override
    async def fetch(self, request: Request) -> Answer:
        try:
            return await self._fetch(request)
        except FileNotFoundError:
            raise missing(request.url) from None

    async def _fetch(self, request: Request) -> Answer:
        if request.is_whole and request.version is None:
            data: bytes = await self._call("cat_file", request.url)
            return Answer(data, len(data), "")
        if request.start < 0 or request.version is None:
            info = await self._info(request.url)
            size = int(info["size"])
            start = max(size + request.start, 0) if request.start < 0 else request.start
            stop = size if request.stop is None else request.stop
            data = await self._call("cat_file", request.url, start=start, end=stop)
            return Answer(data, size, _version(info), _modified(info))
        data = await self._call("cat_file", request.url, start=request.start, end=request.stop)
        info = await self._info(request.url)  # afterwards: then the bytes are of this version
        if _version(info) != request.version:
            raise stale(request.url)
        return Answer(data, int(info["size"]), request.version, _modified(info))

    async def _info(self, url: str) -> dict[str, Any]:
        info: dict[str, Any] = await self._call("info", url)
        if info.get("type") == "directory":
            raise missing(url)
        return info

    @override
    async def find(self, url: str) -> dict[str, int]:
        root = self._fs._strip_protocol(url).rstrip("/") + "/"  # noqa: SLF001  # as fsspec's users do
        found = await self._call("find", url, detail=True)
        return {name.removeprefix(root): int(info["size"]) for name, info in found.items()}

    @override
    def refusal(self, error: Exception) -> str | None:
        status = getattr(error, "code", None) or getattr(error, "status", None)
        if isinstance(error, PermissionError):
            return f"{error}; see the credentials in the environment or the profile"
        if isinstance(status, int) and 400 <= status < 500 and status not in {408, 429}:
            return f"{type(error).__name__} ({status}): {error}"
        if isinstance(status, int) or isinstance(error, OSError) or _is_of_aiohttp(error):
            return None
        raise error

    async def _call(self, name: str, url: str, **options: Any) -> Any:  # noqa: ANN401  # as fsspec says
        if self._fs.async_impl:
            return await getattr(self._fs, f"_{name}")(url, **options)
        return await asyncio.to_thread(getattr(self._fs, name), url, **options)


def _is_of_aiohttp(error: Exception) -> bool:
    return type(error).__module__.startswith("aiohttp.")


def _version(info: dict[str, Any]) -> str:
    known = [f"{name}={info[name]}" for name in _VERSION if info.get(name) is not None]
    return " ".join([f"size={info['size']}", *known])


def _modified(info: dict[str, Any]) -> float:
    """Return when the object was put; file systems say it as a time, as seconds, or as text."""
    for value in (info[name] for name in _MODIFIED if info.get(name) is not None):
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            continue
    return 0.0

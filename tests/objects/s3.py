"""The servers of these tests, as a test sees them."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import fsspec
from typing_extensions import override

from hsstore.location import RemotePath

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "never-to-be-seen-0123456789"
NAMES = count()
"""Of places that nobody has used."""
_shared: dict[tuple[str, Path], str] = {}


def new_url(protocol: str = "s3", name: str = "s.zarr") -> RemotePath:
    """Return a URL where nothing is."""
    return RemotePath(f"{protocol}://states/{next(NAMES)}/{name}")


def files_of(url: RemotePath) -> dict[str, bytes]:
    """Return all that is below a URL, by the rest of its name."""
    return {name: (url / name).read_bytes() for name in url.find()}


@dataclass(frozen=True, slots=True)
class S3:
    """The server, seen by a test."""

    protocol: ClassVar[str] = "s3"
    to_write: ClassVar[str] = "s3:PutObject"
    """A permission that is named where writing is forbidden."""
    endpoint: str

    def new(self, name: str = "x") -> str:
        """Return a URL where nothing is."""
        return str(new_url(self.protocol, name))

    def upload(self, path: Path, **options: str) -> str:
        """Put a store into a place of its own; return its URL."""
        url = self.new(path.name)
        files = fsspec.filesystem("s3", use_listings_cache=False)
        files.put(str(path), url, recursive=True, **options)
        self.requests()
        return url

    def shared(self, path: Path) -> str:
        """Return the URL of a store that was put once, for all tests: not to be changed."""
        if (self.protocol, path) not in _shared:
            _shared[self.protocol, path] = self.upload(path)
        return _shared[self.protocol, path]

    def put(self, path: Path, url: str) -> None:
        """Replace one object."""
        self.write(url, path.read_bytes())

    def write(self, url: str, data: bytes) -> None:
        """Replace one object, whatever is there."""
        fsspec.filesystem("s3", use_listings_cache=False).pipe_file(url, data)

    def fail(self, what: int | str, where: str, times: int = 1, **more: Any) -> None:
        """Have so many of the next requests fail: with a status, or by reset, cut, delay, ... (see `server`)."""
        self.fail_all([{"what": what, "where": where, "times": times, **more}] if times else [])

    def fail_all(self, faults: list[dict[str, Any]]) -> None:
        """Have requests fail in several ways."""
        request = urllib.request.Request(f"{self.endpoint}/_faults", json.dumps(faults).encode())
        urllib.request.urlopen(request, timeout=30).close()

    def unused_faults(self) -> int:
        """Return how many of the requests that were to fail did not come."""
        with urllib.request.urlopen(f"{self.endpoint}/_unused", timeout=30) as answer:
            return int(answer.read())

    def release(self) -> list[str]:
        """Have requests done that were held; return the statuses of their answers."""
        request = urllib.request.Request(f"{self.endpoint}/_release", b"{}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: list[str] = json.load(answer)
        return found

    def requests(self) -> list[dict[str, str]]:
        """Return the requests that came since this was asked."""
        with urllib.request.urlopen(f"{self.endpoint}/_log", timeout=30) as answer:
            found: list[dict[str, str]] = json.load(answer)
        return found

    def writes(self) -> int:
        """Return how many of them were to write."""
        return sum(one["method"] != "GET" for one in self.requests())


class Google(S3):
    """The server that speaks as Google's does."""

    protocol: ClassVar[str] = "gs"
    to_write: ClassVar[str] = "storage.objects.create"

    @override
    def upload(self, path: Path, **options: str) -> str:
        url = self.new(path.name)
        for file in path.rglob("*"):
            if file.is_file():
                self.put(file, f"{url}/{file.relative_to(path)}")
        return url

    @override
    def write(self, url: str, data: bytes) -> None:
        request = urllib.request.Request(self._behind(url), data, method="PUT")
        urllib.request.urlopen(request, timeout=30).close()

    def resource(self, url: str) -> dict[str, Any]:
        """Return what was said of an object when it was put."""
        with urllib.request.urlopen(self._behind(url), timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _behind(self, url: str) -> str:
        return f"{self.endpoint}/_object/{quote(url.removeprefix('gs://'))}"

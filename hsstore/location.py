"""Where a store is: a directory, or objects under a URL.

A URL is never a `pathlib.Path`: nothing that works on files can be given one by mistake, and mypy sees where it
could be. Nothing is imported for a directory; fsspec is, with the first object that is read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import override

from hsstore.errors import InputError

if TYPE_CHECKING:
    from io import BufferedReader

    from hsstore.objects import Answer

PROTOCOLS = {"s3": ("s3fs", "aiobotocore"), "gs": ("google.auth", "requests"), "memory": ()}
"""Protocols, and the packages that each needs: those of the extra of its name."""

_URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_ONE_SLASH = re.compile(rf"(?:file|gcs|{'|'.join(PROTOCOLS)}):/", re.IGNORECASE)
"""How a URL begins that lost a slash: taken for a path, it would be a directory of that name here."""


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """The URL of an object, or of what several have in common; as much of `pathlib.Path` as reading takes.

    It is small and can be pickled: another process connects by itself, with its own credentials.
    """

    url: str
    """As `locate` gives it: no slash at the end, no credentials."""

    @override
    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """What follows the last slash."""
        return self.url.rpartition("/")[2]

    @property
    def is_bucket(self) -> bool:
        """Whether it is a whole bucket, so no object; memory has none."""
        protocol, _, path = self.url.partition("://")
        return "/" not in path and protocol != "memory"

    @property
    def parent(self) -> RemotePath:
        """The URL without its name."""
        return RemotePath(self.url.rpartition("/")[0])

    def absolute(self) -> RemotePath:
        """Return itself: a URL is the same from everywhere."""
        return self

    def resolve(self) -> RemotePath:
        """Return itself: object stores have no links."""
        return self

    def get(self, start: int = 0, stop: int | None = None, version: str | None = None) -> Answer:
        """Read the object, or a range of it; see `hsstore.objects.Request`.

        Raises
        ------
        FileNotFoundError
            The object store says that there is no such object: an error is never taken for that.
        OSError
            ESTALE: it is not the version any more.
        UnreachableError
            No answer, also after several attempts.
        InputError
            The object store refuses; its message says why.
        """
        from hsstore.objects import Request, read  # noqa: PLC0415  # brings fsspec

        return read(Request(self.url, start, stop, version))

    def read_bytes(self) -> bytes:
        """Read the whole object; raises what `get` does."""
        return self.get().data

    def open(self) -> BufferedReader:
        """Open the object as a file that can be read and sought in; raises what `get` does, so does reading."""
        from hsstore.objects.stream import open_object  # noqa: PLC0415

        return open_object(self.url)

    def find(self) -> dict[str, int]:
        """List all objects below, by the rest of their names, with their sizes in bytes.

        It takes a request for each thousand of them, so no reader of samples may need it.

        Raises
        ------
        UnreachableError, InputError
            As in `get`.
        """
        from hsstore.objects import find  # noqa: PLC0415

        return find(self.url)


Location: TypeAlias = Path | RemotePath


def locate(text: str | Location) -> Location:
    """Tell paths from URLs, and refuse URLs that cannot be used.

    Raises
    ------
    InputError
        Another protocol, a slash or a package that is missing, or credentials in the URL, which is printed and
        recorded.
    """
    if not isinstance(text, str):
        return text
    url = _URL.fullmatch(text)
    if url is None:
        if _ONE_SLASH.match(text):
            raise InputError(
                f"{text}: a URL has two slashes behind its colon; a path may begin with ./"
            )
        return Path(text)
    protocol, rest = url["protocol"].lower(), url["rest"]
    if protocol == "file":
        return _local(rest, text)
    protocol = "gs" if protocol == "gcs" else protocol
    if protocol not in PROTOCOLS:
        raise InputError(
            f"{protocol}:// is not supported so far: name a directory, or a URL that begins with file://, "
            f"{', '.join(f'{name}://' for name in PROTOCOLS)}"
        )
    parts = rest.strip("/").split("/")
    _refuse_secrets(protocol, parts[0], rest)
    if not parts[0] or not {"", ".", ".."}.isdisjoint(parts):
        raise InputError(f"{text}: a bucket's name, and then names without . and .., are expected")
    _require_package(protocol, text)
    return RemotePath(f"{protocol}://{'/'.join(parts)}")


def is_url(text: str) -> bool:
    """Say whether it is a URL that `locate` has given, and no path.

    >>> is_url("s3://bucket/s.zarr"), is_url("/data/s.zarr")
    (True, False)
    """
    return "://" in text


def runs_beside(store: RemotePath) -> RemotePath:
    """Return where all lies that is about the runs of a store: beside it.

    Raises
    ------
    InputError
        The store is a whole bucket: what is beside that is another bucket, perhaps somebody else's.
    """
    if store.is_bucket:
        raise InputError(
            f"{store} is a bucket: what is about a store's runs lies beside the store, so give it a name "
            f"in the bucket, such as {store}/states.zarr"
        )
    return store.parent / f"{store.name}.runs"


def absolute_text(location: Location) -> str:
    """Return the absolute path as it was given, or the URL; touches nothing, follows no links."""
    return os.path.abspath(location) if isinstance(location, Path) else str(location)  # noqa: PTH100


def require_local(location: Location, what: str) -> Path:
    """Return a path, or refuse a URL by the name of what cannot be done there.

    Parameters
    ----------
    what : str
        Such as "extract writes".

    Raises
    ------
    InputError
    """
    if isinstance(location, Path):
        return location
    raise InputError(f"{what} local paths only so far: {location}")


def _local(rest: str, text: str) -> Path:
    if not rest.startswith("/"):
        raise InputError(f"{text}: a local URL has three slashes, as file:///data/states.zarr")
    return Path(rest)


def _refuse_secrets(protocol: str, host: str, rest: str) -> None:
    """Refuse what may hold credentials, without repeating it."""
    places = {"@": host, ":": host, "?": rest, "#": rest}  # a secret may have a slash in it
    found = next((repr(sign) for sign, place in places.items() if sign in place), None)
    if found:
        raise InputError(
            f"a {protocol}:// URL has {found} in it: credentials and options do not belong into a URL, which is "
            "printed and recorded; give them in the environment or a profile, as docs/object-stores.md says"
        )


def _require_package(protocol: str, text: str) -> None:
    if not all(map(_is_installed, PROTOCOLS[protocol])):
        raise InputError(
            f"{text} needs a package that is not installed: pip install 'hsstore[{protocol}]'"
        )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # nor what it is a part of
        return False

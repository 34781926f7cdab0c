"""What is asked of an object store, and what it answers."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """A range of one object."""

    url: str
    start: int = 0
    """First byte; below 0, so many bytes before the end."""
    stop: int | None = None
    """Behind the last byte; None is the end of the object."""
    version: str | None = None
    """Only of this version; any, if it is left out."""

    @property
    def is_whole(self) -> bool:
        """Say whether it is all of the object."""
        return self.start == 0 and self.stop is None

    @property
    def range(self) -> dict[str, str]:
        """The header that asks for this range; none for all of the object."""
        if self.is_whole:
            return {}
        last = "" if self.stop is None else self.stop - 1
        return {"Range": f"bytes={self.start}" if self.start < 0 else f"bytes={self.start}-{last}"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes of a range; fewer than were asked for where the object ends before."""

    data: bytes
    size_bytes: int
    """Of the whole object."""
    version: str
    """What tells this object from what may have its name later; empty where the range lies behind its end."""
    modified: float = 0.0
    """When the object was put: seconds since 1970, 0 where that is not known."""


class NoSuchObjectError(FileNotFoundError):
    """The object store says that there is no such object: what any other `FileNotFoundError` does not."""


class Refusing(Protocol):
    """What knows of an error whether another attempt would meet it again."""

    def refusal(self, error: Exception) -> str | None:
        """Say why another attempt would fail as well, also what nobody has foreseen; None otherwise."""
        ...


class Backend(Refusing, Protocol):
    """One kind of object store. Its coroutines run on fsspec's event loop."""

    async def fetch(self, request: Request) -> Answer:
        """Read a range, in one attempt.

        Raises
        ------
        NoSuchObjectError
        OSError
            ESTALE: the object was replaced.
        Exception
            Whatever its packages raise; see `refusal`.
        """
        ...

    async def find(self, url: str, after: str) -> tuple[dict[str, int], str]:
        """List a page of the objects below a URL, by the rest of their names, with their sizes; in one attempt.

        Parameters
        ----------
        after : str
            What came with the page before; empty for the first one.

        Returns
        -------
        dict, str
            What to give for the next page; empty after the last one.
        """
        ...


def split(url: str) -> tuple[str, str]:
    """Return bucket and key."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


def missing(url: str) -> NoSuchObjectError:
    """Return the error that says that there is no such object."""
    return NoSuchObjectError(errno.ENOENT, os.strerror(errno.ENOENT), url)


def stale(url: str) -> OSError:
    """Return the error that says that the object was replaced: as a network file system says it."""
    return OSError(errno.ESTALE, "the object was replaced while it was read", url)

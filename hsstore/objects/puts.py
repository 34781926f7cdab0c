"""What is asked of an object store that is written to. Every put says what it replaces: there is no other.

So nothing hangs on clocks, or on who claims what: of two who would replace the same object, one does. A put that
a proxy delivers a minute late, or that of a run which was taken for dead, finds another object than it names. Of S3
a version is the ETag, which is made of the bytes alone: what may become again what it was is put in parts, see `files`.
Of Google it is the generation: a number that no other object of that name has had.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

from typing_extensions import override

from hsstore.errors import RefusedError
from hsstore.objects.answer import Refusing

ABSENT: Final = ""
"""In place of a version: there must be no such object. No object has this version."""
TOKEN: Final = "hsstore-put"  # noqa: S105  # the name of a field
"""Where an object's metadata have the token of its put."""


class ConflictError(RefusedError):
    """The object is not what was to be replaced, so nothing was written: somebody else writes it."""

    def __init__(self, url: str, *, upload_is_gone: bool = False) -> None:
        super().__init__(url)
        self.url = url
        self.upload_is_gone = upload_is_gone

    @override
    def __str__(self) -> str:
        """Say it for people."""
        if self.upload_is_gone:
            return (
                f"what was sent of {self.url} is gone, and this was not written: whoever has taken over has ended "
                "the upload, or a lifecycle rule has. See that nobody else writes there, then run the same command again"
            )
        return (
            f"{self.url} is not what it was: somebody else has written it meanwhile, and this was not written. "
            "See that nobody else writes there, then run the same command again"
        )


@dataclass(frozen=True, slots=True)
class Put:
    """A whole object."""

    url: str
    data: bytes
    replaces: str
    """The version that was read, or ABSENT."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What an object store says of an object."""

    size_bytes: int
    version: str
    modified: float
    """When it was put, by the clock of the store: seconds since 1970."""
    token: str
    """Of the put that made it; empty where it was not one of ours."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part that the store has: what it asks for again when the upload is completed."""

    number: int
    """From 1 on."""
    etag: str
    checksum: str
    """Where parts are sent in order: of the object up to the end of this one."""
    stop: int = 0
    """Where parts are sent in order: how many bytes of the object the store has."""
    rest: bytes = field(default=b"", repr=False)
    """Bytes that it takes only with those behind them, or when the upload is completed."""


@dataclass(frozen=True, slots=True)
class UploadId:
    """An upload that was begun."""

    url: str
    id: str = field(repr=False)
    """May be all that it takes to write there."""


class WritableBackend(Refusing, Protocol):
    """A kind of object store that is written to; each method is one attempt.

    Their errors are those of `Backend.fetch`, and ConflictError.
    """

    in_order: ClassVar[bool] = False
    """Each part of an upload is sent when the store has the one before."""

    async def put(self, put: Put, checksum: str, token: str) -> str:
        """Put an object with its token; return its version."""
        ...

    async def head(self, url: str) -> Stat | None:
        """Ask for an object without its bytes; None where the store says that there is none."""
        ...

    async def begin(self, url: str, token: str, replaces: str) -> UploadId:
        """Begin an upload: an object in parts, which does not exist before it is completed.

        What it replaces is given twice, here and when it is completed: stores want it at the one or the other.
        """
        ...

    async def send(
        self, upload: UploadId, number: int, data: bytes, checksum: str, before: Part | None
    ) -> Part:
        """Send a part, or send it again; `before` is the one before, where they are sent in order."""
        ...

    async def complete(self, upload: UploadId, parts: tuple[Part, ...], replaces: str) -> str:
        """Make the parts an object; return its version. ConflictError too where there is no such upload any more."""
        ...

    async def abort(self, upload: UploadId) -> None:
        """Give up an upload; nothing where there is none any more."""
        ...

    async def uploads(self, url: str, after: str) -> tuple[list[UploadId], str]:
        """List a page of the uploads of objects whose URLs begin so, as `Backend.find` does."""
        ...

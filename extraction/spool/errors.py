"""What can go wrong in a spool, grouped by what the caller will do about it.

::

    SpoolError
    ├── SpoolMissingError       no such directory: start the server, or name the right one
    ├── SpoolForeignError       wrong owner or permissions: not ours to use
    ├── SpoolBusyError          another server, or another client, holds this spool
    ├── NoServerError           no live server, or none that speaks our protocol
    ├── DumpError               this dump is unusable: discard it, ask for the sample again
    │   ├── TruncatedDumpError
    │   ├── BadHeaderError
    │   └── WrongShapeError
    ├── DumpInUseError          a mapping or a view of it is still open: a mistake in the caller
    └── CaptureError            server side: this capture ends as an `.error` file

The spool has exceptions of its own because the server side is installed without hsstore.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorReason(StrEnum):
    """Why a capture ended without a dump. Append-only: clients of other versions read these."""

    FULL = "full"
    """The spool or the memory behind it has no room. Costs no attempt: ask again later."""
    OVERRUN = "overrun"
    """The server's buffers were exhausted. Costs no attempt: keep fewer requests in flight."""
    MISMATCH = "mismatch"
    """The server saw other rows than the request promised."""
    INCOMPLETE = "incomplete"
    """The request ended, and some of its rows were never computed."""
    ENGINE = "engine"
    """The engine failed on this request, or the spool refused a write."""


class SpoolError(Exception):
    """Base class."""


class SpoolMissingError(SpoolError):
    """The spool directory does not exist."""


class SpoolForeignError(SpoolError):
    """The spool directory has another owner, or permissions that let others in."""


class SpoolBusyError(SpoolError):
    """Another process of the same role holds this spool."""


class NoServerError(SpoolError):
    """No live server announced itself in this spool."""


class DumpError(SpoolError):
    """A dump is not what its name promises."""


class TruncatedDumpError(DumpError):
    """The file is shorter than its header says."""


class BadHeaderError(DumpError):
    """The file does not begin with the header of a dump."""


class WrongShapeError(DumpError):
    """A tensor has a shape or a dtype that the name and the metadata contradict."""


class DumpInUseError(SpoolError):
    """A dump cannot be closed or given back while its bytes are still referenced."""


class CaptureError(SpoolError):
    """A capture cannot go on; `reason` goes into its `.error` file."""

    def __init__(self, reason: ErrorReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

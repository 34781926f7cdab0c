"""What both sides of a relay say: versions, headers, kinds of errors, and the listing of a spool."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

import xxhash

from extraction.spool import Heartbeat, RequestId

VERSION: Final = "1"
VERSION_HEADER: Final = "HSSTORE-Relay"
SESSION_HEADER: Final = "HSSTORE-Session"

LONGEST_WAIT_SECONDS: Final = 1.0
"""A listing is held back for so long at most: heartbeats and dead servers are seen that often."""
ORPHANED_SECONDS: Final = 5.0
"""A run whose connection broke, and that is silent for so long, gives way to another."""


class Kind(StrEnum):
    """Why a relay refuses a request. Append-only: clients of other versions read these."""

    REQUEST = "request"
    VERSION = "version"
    TOKEN = "token"  # noqa: S105  # the kind of an error
    MISSING = "missing"
    HELD = "held"
    LOST = "lost"
    NO_SPOOL = "no-spool"
    BUSY = "busy"


class RefusalError(Exception):
    """A request is refused with a status, a kind and a message that says what to do."""

    def __init__(self, status: int, kind: Kind, message: str, **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.content: dict[str, object] = {"code": status, "kind": kind, "message": message, **more}


@dataclass(frozen=True, slots=True)
class Listing:
    """What a relay's spool holds at one moment."""

    alive: bool = False
    """Whether a server holds the spool."""
    info: str = ""
    """Changes with server.json; empty while there is none."""
    holder: str = ""
    """The session that holds the spool through the relay."""
    finished: dict[RequestId, int] = field(default_factory=dict)
    """Sizes in bytes, the oldest dump first."""
    partial: tuple[RequestId, ...] = ()
    errors: dict[RequestId, str] = field(default_factory=dict)
    """Contents of the `.error` files."""
    heartbeat: Heartbeat | None = None
    room_bytes: int = 0
    """What new files may take there."""

    @property
    def seen(self) -> str:
        """Name this state; heartbeat and room, which change all the time, are no part of it."""
        return str(xxhash.xxh3_64_hexdigest(json.dumps(self._state()).encode()))

    def to_json(self) -> dict[str, Any]:
        """Encode, with its name as `seen`."""
        beat = None if self.heartbeat is None else asdict(self.heartbeat)
        more = {"seen": self.seen, "heartbeat": beat, "room_bytes": self.room_bytes}
        return self._state() | more

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Listing:
        """Decode; names that are no request ids are left out, whatever they are.

        Raises
        ------
        ValueError, KeyError, TypeError
        """
        beat = content["heartbeat"]
        return cls(
            alive=bool(content["alive"]),
            info=str(content["info"]),
            holder=str(content["holder"]),
            finished={rid: int(size) for rid, size in _known(dict(content["finished"]))},
            partial=tuple(rid for rid, _ in _known(dict.fromkeys(content["partial"]))),
            errors={rid: str(text) for rid, text in _known(dict(content["errors"]))},
            heartbeat=None if beat is None else Heartbeat(**beat),
            room_bytes=int(content["room_bytes"]),
        )

    def _state(self) -> dict[str, Any]:
        return {
            "alive": self.alive,
            "info": self.info,
            "holder": self.holder,
            "finished": [[str(rid), size] for rid, size in self.finished.items()],
            "partial": [str(rid) for rid in self.partial],
            "errors": {str(rid): text for rid, text in self.errors.items()},
        }


def _known(names: dict[str, Any]) -> list[tuple[RequestId, Any]]:
    found = ((RequestId.parse(name), value) for name, value in names.items())
    return [(rid, value) for rid, value in found if rid is not None]

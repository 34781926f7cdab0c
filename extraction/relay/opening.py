"""A session at a relay: how it is opened, and what it means when it is refused."""

from __future__ import annotations

import logging
import math
import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from extraction.relay.protocol import LONGEST_WAIT_SECONDS, Kind
from extraction.relay.wire import RelayAwayError, RelayRefusedError, StrangerError
from extraction.spool import (
    ClientInfo,
    SpoolBusyError,
    SpoolError,
    SpoolForeignError,
    SpoolMissingError,
)

if TYPE_CHECKING:
    from extraction.relay.download import Downloads
    from extraction.relay.wire import Wire
    from extraction.spool import RequestId

log = logging.getLogger(__name__)

HELD_SECONDS: Final = 3.0
"""So long one waits for a run that holds the spool before it shows whether it is alive."""


@dataclass(frozen=True, slots=True)
class Session:
    """One time that the spool is held; what an earlier one of the same run sent may come late."""

    client: ClientInfo
    name: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def body(self) -> dict[str, object]:
        """What the relay is told."""
        return {
            "run": self.client.run,
            "store": self.client.store,
            "host": socket.gethostname(),
        }


def begin(
    wire: Wire, session: Session, downloads: Downloads, room_bytes: int
) -> dict[RequestId, int]:
    """Open a session, or the same one again, and sort out what dead runs left at the server.

    What cannot be used is removed there: what did not end, what this run itself left in an earlier
    session, and what has no room here.

    Returns
    -------
    dict
        Sizes in bytes of the dumps that are to come.

    Raises
    ------
    RelayAwayError, RelayRefusedError
    """
    wire.ask("POST", "/v1/session", session.body)
    there, _ = wire.listing()
    coming: dict[RequestId, int] = {}
    useless = [*there.partial, *there.errors]
    for rid, size_bytes in there.finished.items():
        if downloads.is_here(rid):
            continue
        if rid.run != session.client.run and size_bytes <= room_bytes:
            coming[rid] = size_bytes
            room_bytes -= size_bytes
        else:
            useless.append(rid)
    if useless:
        wire.ask("POST", "/v1/release", {"discard": [str(rid) for rid in useless]})
        log.info(
            "at the server, what was left of %d requests and is of no use is removed", len(useless)
        )
    if coming:
        log.info("%d dumps of a dead run lie at the server: fetching them", len(coming))
    return coming


def passes(error: RelayAwayError | RelayRefusedError, waited_seconds: float = math.inf) -> bool:
    """Tell whether a relay that was there before may answer otherwise soon."""
    match error:
        case RelayAwayError() | StrangerError():  # that is something in front of it
            return True
        case RelayRefusedError(kind=Kind.HELD):  # a run that was killed holds it: that is silent
            return error.idle_seconds > LONGEST_WAIT_SECONDS or waited_seconds < HELD_SECONDS
        case _:
            return error.kind in {Kind.NO_SPOOL, Kind.LOST}


def spool_error(error: RelayRefusedError) -> SpoolError:
    """Say it as a spool of this machine would."""
    if error.kind == Kind.HELD:
        return SpoolBusyError(str(error))
    if error.kind == Kind.NO_SPOOL:
        return SpoolMissingError(str(error))
    return SpoolForeignError(str(error))

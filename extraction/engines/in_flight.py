"""The requests that a server is at, captures and generations alike: each id once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class DuplicateRequestError(Exception):
    """A request with this id is in flight."""


class Abortable(Protocol):
    """A request that looks now and then whether it is still wanted."""

    @property
    def rid(self) -> str:
        """Its id."""

    @property
    def aborted(self) -> threading.Event:
        """Set when nobody waits for it any more."""


class InFlight:
    """Which ids are in flight; for several threads."""

    def __init__(self) -> None:
        self._aborted: dict[str, threading.Event] = {}
        self._guard = threading.Lock()

    def __contains__(self, rid: str) -> bool:
        """Tell whether a request is in flight."""
        return rid in self._aborted

    def add(self, requests: Sequence[Abortable]) -> None:
        """Take requests in, all or none.

        Raises
        ------
        DuplicateRequestError
            An id is in flight already, or twice among these.
        """
        with self._guard:
            seen = set(self._aborted)
            for request in requests:
                if request.rid in seen:
                    raise DuplicateRequestError(f"Duplicate request ID: {request.rid}")
                seen.add(request.rid)
            self._aborted.update({request.rid: request.aborted for request in requests})

    def abort(self, rid: str) -> None:
        """Tell a request that nobody waits for it; one that has ended is no error."""
        with self._guard:
            if (aborted := self._aborted.get(rid)) is not None:
                aborted.set()

    def abort_all(self) -> None:
        """Tell all that are in flight."""
        with self._guard:
            for aborted in self._aborted.values():
                aborted.set()

    def forget(self, rid: str) -> None:
        """Let go of a request that has ended: its id may come again."""
        with self._guard:
            del self._aborted[rid]

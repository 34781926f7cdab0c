"""What the requests for one sample have cost it: attempts, patience, and when there is no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extraction.server_link import RequestAbortedError
from hsstore.errors import RefusedError
from hsstore.plausible import Fault
from hsstore.spec import FailureReason

if TYPE_CHECKING:
    from collections.abc import Hashable

    from extraction.requester import ServerBusyError
    from extraction.server_link import ServerAwayError

FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 10.0
AWAY_COSTS_AN_ATTEMPT = 8
"""A sample whose request alone breaks so often in a row, while the server is healthy, is bad."""
MANY_ABORTS = 4
"""So often in a row somebody else aborts the request for one sample: this is no accident."""
ALONE_AFTER = 4
"""So often in a row a server may have no room for a sample before it is asked for with nothing else
in flight."""
MAX_BUSY_ALONE = 8
"""And so often in a row then, with nothing of ours in the spool: it will never have room."""


class Attempts:
    """The tries of one sample.

    Parameters
    ----------
    allowed : int
        Attempts that it has.
    skip_too_large : bool
        Give it up when the spool has no room for it alone, instead of stopping the run.
    """

    def __init__(self, allowed: int, *, skip_too_large: bool) -> None:
        self._left = allowed
        self._skip_too_large = skip_too_large
        self._away_in_row = self._busy_in_row = 0
        self._busy_alone: dict[Hashable, int] = {}
        """In a row, by server."""
        self._pause_seconds = FIRST_PAUSE_SECONDS

    @property
    def over(self) -> bool:
        """Whether the sample is to be given up."""
        return self._left <= 0

    @property
    def alone(self) -> bool:
        """Whether to ask with nothing else in flight."""
        return self._busy_in_row >= ALONE_AFTER

    def next_pause_seconds(self) -> float:
        """Return how long to wait before the next request; each time longer."""
        pause = self._pause_seconds
        self._pause_seconds = min(2 * pause or FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        return pause

    def failed(self) -> None:
        """Take note of a request that failed for a reason of its own."""
        self._left -= 1
        self._away_in_row = 0
        self.forget_busy()

    def forget_busy(self) -> None:
        """Count answers of servers without room anew: what one has no room for, another may take."""
        self._busy_in_row = 0
        self._busy_alone.clear()

    def away(self, error: ServerAwayError) -> Fault:
        """Take note of a server that was not there, or of somebody who aborts our requests."""
        self._away_in_row += 1
        aborted = isinstance(error, RequestAbortedError)
        if aborted and self._away_in_row == 1:
            self._pause_seconds = 0.0
        self._left -= self._away_in_row % AWAY_COSTS_AN_ATTEMPT == 0
        self.forget_busy()
        often = aborted and self._away_in_row >= MANY_ABORTS
        return Fault(FailureReason.REFUSED, f"{error}{_WHO_ABORTS if often else ''}")

    def busy(self, error: ServerBusyError, server: Hashable, *, alone: bool) -> Fault:
        """Take note of a server without room for the capture.

        Parameters
        ----------
        server : hashable
            Which one: each is judged by its own answers.
        alone : bool
            Nothing else was in flight, and nothing of ours was in the spool.

        Raises
        ------
        RefusedError
            It has no room for this request alone either.
        """
        self._busy_in_row += 1
        self._busy_alone[server] = self._busy_alone.get(server, 0) + 1 if alone else 0
        if self._busy_alone[server] < MAX_BUSY_ALONE:
            return Fault(FailureReason.REFUSED, str(error))
        if error.full and self._skip_too_large:
            self._left = 0
            return Fault(FailureReason.TOO_LARGE, f"the spool has no room for it alone: {error}")
        raise RefusedError(
            f"the server captures no single request, {MAX_BUSY_ALONE} times in a row with nothing "
            f"else in flight and an empty spool: {error}. {_FULL if error.full else _OVERRUN}"
        )


_WHO_ABORTS = (
    ", again and again: look for another client of this server that calls /abort_request (with "
    "abort_all, it aborts ours too), and for a router or proxy that gives up slow requests"
)
_FULL = (
    "What it may take is the least of the spool's file system, the machine's memory and the limit "
    "of the server's own container (cgroup), which may be less than this side sees: see who fills "
    "them, give the server more memory or a larger /dev/shm, or leave such samples out with "
    "--skip-too-large"
)
_OVERRUN = (
    "Its staging buffers are too small, or their writer hangs: see what its log says of hsstore, "
    "and give it a larger HSSTORE_STAGING_MB or a smaller --chunked-prefill-size"
)

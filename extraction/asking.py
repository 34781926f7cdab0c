"""Ask for one prefix with patience: again, while the fault is not the request's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from extraction.requester import ServerBusyError
from extraction.server_link import ServerAwayError
from hsstore.errors import InterruptedRunError

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    from extraction.requester import Requester
    from extraction.spool import Dump, RequestId

PAUSES_SECONDS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0)
"""Before each attempt."""


class NoRoomError(InterruptedRunError):
    """The server had no room for one request, however often it was asked."""


async def all_of(asked: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines side by side to their ends; raise the first error only then."""
    found = await asyncio.gather(*asked, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]


async def ask_patiently(
    requester: Requester, rid: RequestId, tokens: npt.NDArray[np.int32], *, prompt: bool
) -> tuple[RequestId, Dump]:
    """Ask until a dump comes; return it, and the id that it came under.

    Parameters
    ----------
    prompt : bool
        Nothing large of ours is in flight: a missing dump is told as soon as the server is idle.

    Raises
    ------
    InterruptedRunError
        The server is not there, or it is there and breaks every request.
    NoRoomError
        It is there, and has no room for this one.
    RefusedError
        It is another server now, or wants another key.
    RequestRefusedError, DumpMissingError, CaptureFailedError, DumpError
    """
    reason, busy = "", False
    for pause in PAUSES_SECONDS:
        await asyncio.sleep(pause)
        await requester.wait_until_up()
        try:
            return rid, await requester.fetch(rid, tokens, prompt=prompt)
        except ServerBusyError as error:
            reason = str(error)
            busy = True
        except ServerAwayError as error:
            requester.park(error)
            reason = str(error)
            busy = False
        rid = replace(rid, attempt=rid.attempt + 2)  # even and odd: a run may shake hands twice
    raise (NoRoomError if busy else InterruptedRunError)(
        f"no dump in {len(PAUSES_SECONDS)} attempts, the last time: {reason}; look at the server's "
        "log, then run the same command again"
    )

"""What the answers of several servers mean for one sample."""

from __future__ import annotations

import pytest

from extraction.attempts import MAX_BUSY_ALONE, Attempts
from extraction.requester import ServerBusyError
from hsstore.errors import RefusedError

FULL = ServerBusyError("full: on demand", full=True)


def test_a_server_without_room_is_judged_by_its_own_answers() -> None:
    tries = Attempts(1, skip_too_large=False)
    for _ in range(MAX_BUSY_ALONE - 1):
        tries.busy(FULL, "a", alone=True)
    tries.busy(FULL, "b", alone=True)

    with pytest.raises(RefusedError, match="captures no single request"):
        tries.busy(FULL, "a", alone=True)

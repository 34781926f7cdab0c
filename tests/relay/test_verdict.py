"""The doctor knows a mirrored spool, and says of a relay that brings nothing that it is the relay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from extraction.diagnosis.collect import look_at_spool
from extraction.diagnosis.judge import judge
from hsstore.verdict import Verdict
from tests.diagnosis.given import QUIET, SPOOL
from tests.relay.given import mirror, relay

if TYPE_CHECKING:
    from pathlib import Path

    from extraction.spool import SpoolServer


async def test_a_mirrored_spool_names_its_relay(server: SpoolServer, here: Path) -> None:
    async with relay(server.directory.path) as url, mirror(url, here):
        seen = look_at_spool(str(here))
    assert (seen.relay, seen.server_lock_held) == (url, True)
    assert seen.server is not None
    assert look_at_spool(str(server.directory.path)).relay == ""


def test_dumps_that_do_not_come_are_looked_for_at_the_relay() -> None:
    url = "http://gpu1:31000"
    found = judge(replace(QUIET, spool=replace(SPOOL, relay=url)), stalled_seconds=60)
    assert found.verdict is Verdict.DUMP_MISSING
    assert url in found.summary
    assert "start it again on the server's host" in found.advice

"""Evidence of a run with several servers, as if it had one: each is judged for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from extraction.diagnosis.evidence import Evidence


def server_by_server(evidence: Evidence) -> Iterator[Evidence]:
    """Yield what is known of the run with each of its servers alone."""
    if not evidence.servers:
        yield evidence
    for one in evidence.servers:
        status = evidence.status
        if status is not None:
            status = replace(
                status, in_flight=one.in_flight, server=one.server.url, spool=one.spool.path
            )
        yield replace(evidence, status=status, server=one.server, spool=one.spool, servers=())


def together(evidence: Evidence) -> Evidence:
    """Return the evidence with what lies in all spools in one: for what a kill would cost."""
    if not evidence.servers:
        return evidence
    spools = [one.spool for one in evidence.servers]
    spool = replace(
        spools[0],
        finished=tuple(file for one in spools for file in one.finished),
        partial=tuple(file for one in spools for file in one.partial),
    )
    return replace(evidence, spool=spool)

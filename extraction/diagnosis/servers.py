"""Evidence of a run with several servers, as if it had one: each is judged for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from extraction.diagnosis.evidence import Evidence, StageEvidence, StatusEvidence


def server_by_server(evidence: Evidence) -> Iterator[Evidence]:
    """Yield what is known of the run with each of its servers alone."""
    if not evidence.servers:
        yield evidence
    for one in evidence.servers:
        status = evidence.status
        if status is not None:
            status = replace(
                status,
                in_flight=one.in_flight,
                server=one.server.url,
                spool=one.spool.path,
                stages=_stages_of_each(status),
            )
        yield replace(evidence, status=status, server=one.server, spool=one.spool, servers=())


def _stages_of_each(status: StatusEvidence) -> tuple[StageEvidence, ...]:
    """Return the stages without what is true of all servers together only.

    Whose requests are answered is not told: all of one server's are for certain where all are.
    """
    answered = status.stage("answered")
    if answered is None or answered.items >= status.in_flight:
        return status.stages
    return tuple(one for one in status.stages if one is not answered)


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

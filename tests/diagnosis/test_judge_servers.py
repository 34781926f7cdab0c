"""A run with several servers: each is judged for itself, and one that is away is no verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from extraction.diagnosis.evidence import NOT_ASKED, OneServerEvidence, ServerEvidence
from extraction.diagnosis.judge import judge
from hsstore.verdict import Verdict
from tests.diagnosis.given import (
    HEALTHY,
    QUIET,
    SPOOL,
    STANDING,
    check,
    dumps,
    names,
    stage,
    status,
)

if TYPE_CHECKING:
    from extraction.diagnosis.evidence import Evidence, SpoolEvidence
    from tests.diagnosis.given import Given

GONE = replace(SPOOL, server_lock_held=False, server=None)
LOADING = replace(SPOOL, server=None)


def one(
    name: str, spool: SpoolEvidence, state: str = "up", in_flight: int = 4, health: str = NOT_ASKED
) -> OneServerEvidence:
    spool = replace(spool, path=f"/dev/shm/{name}")
    server = ServerEvidence(f"http://{name}", health)
    return OneServerEvidence(state, in_flight, server, spool, "" if state == "up" else "reset")


def several(*servers: OneServerEvidence, evidence: Evidence = QUIET) -> Evidence:
    return replace(evidence, servers=servers, spool=servers[0].spool, server=servers[0].server)


AWAY = one("a", GONE, "parked", 0)
CASES: list[Given] = [
    (
        "one is away, and the run gets on",
        several(AWAY, one("b", SPOOL), evidence=HEALTHY),
        Verdict.HEALTHY,
        "",
    ),
    (
        "one is away, and the other hangs",
        several(AWAY, one("b", STANDING)),
        Verdict.SERVER_HUNG,
        "its heartbeat stands still",
    ),
    (
        "one hangs that comes first, and the other is idle",
        several(one("a", STANDING), one("b", STANDING, in_flight=0)),
        Verdict.SERVER_HUNG,
        "",
    ),
    (
        "one is full",
        several(one("a", SPOOL), one("b", replace(SPOOL, headroom_bytes=0))),
        Verdict.SPOOL_FULL,
        "the spool /dev/shm/b",
    ),
    (
        "all are away",
        several(AWAY, one("b", GONE, "parked", 0)),
        Verdict.SERVER_DOWN,
        "the spool /dev/shm/a is held by no server",
    ),
    (
        "all are away, and one is loading",
        several(AWAY, one("b", LOADING, "parked", 0)),
        Verdict.WAITING_FOR_SERVER,
        "/dev/shm/b: it is loading",
    ),
    (
        "one refuses, and the other does not answer",
        several(one("a", SPOOL, health="refused"), one("b", SPOOL, health="no answer")),
        Verdict.SERVER_HUNG,
        "http://b is asked for its health: no answer",
    ),
    (
        "none is left",
        replace(
            QUIET,
            status=status(unserved=True, stages=(stage("queue"),), in_flight=0),
            spool=None,
            server=None,
        ),
        Verdict.WAITING_FOR_SERVER,
        "no server is left to ask",
    ),
    (
        "what fits the spool of one only waits for it",
        several(
            AWAY,
            one("b", SPOOL, in_flight=0),
            evidence=replace(QUIET, status=status(stages=(stage("queue"),), in_flight=0)),
        ),
        Verdict.SERVER_DOWN,
        "the spool /dev/shm/a is held by no server",
    ),
    (
        "the dumps of one are unread, and those of the other are kept for their block",
        several(
            one("a", replace(SPOOL, finished=dumps(*range(40, 50)))),
            one("b", replace(SPOOL, finished=dumps(50, 51))),
            evidence=replace(QUIET, status=status(stages=(stage("give-back", items=10),))),
        ),
        Verdict.DUMP_UNREAD,
        "2 finished dumps",
    ),
    (
        "all of one are answered, and the other hangs",
        several(
            one("a", SPOOL),
            one("b", STANDING),
            evidence=replace(QUIET, status=status(stages=(stage("answered", items=4),))),
        ),
        Verdict.SERVER_HUNG,
        "its heartbeat stands still",
    ),
]


@pytest.mark.parametrize("given", CASES, ids=names(CASES))
def test_the_verdict_is_that_of_the_run(given: Given) -> None:
    check(given)


def test_the_evidence_names_each_server_and_the_cost_of_a_kill_is_that_of_all() -> None:
    servers = (
        one("a", replace(GONE, finished=dumps(40)), "parked", 0),
        one("b", replace(SPOOL, finished=dumps(50), partial=dumps(43))),
    )

    found = judge(several(*servers, evidence=HEALTHY), stalled_seconds=60)

    assert "one of the servers is parked, 0 in flight: reset" in found.evidence
    assert "server http://a: health not asked" in found.evidence
    assert "spool /dev/shm/a: server absent, client alive" in found.evidence
    assert "server http://b: health not asked" in found.evidence
    assert found.kill_cost.kept_in_spool == (40, 50)
    assert found.kill_cost.asked_again == (41, 42, 43)


def test_idle_servers_of_a_run_that_stands_still_are_not_to_blame() -> None:
    idle = [one(name, STANDING, in_flight=0) for name in "ab"]

    found = judge(several(*idle, evidence=replace(QUIET, status=status())), stalled_seconds=60)

    assert found.verdict is Verdict.CLIENT_STUCK

"""A run whose page cannot be read: what its copy and its own watchdog say, and what nobody can know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extraction.diagnosis.evidence import CopyEvidence, Evidence, StallEvidence
from extraction.diagnosis.judge import judge
from hsstore.verdict import Verdict
from tests.diagnosis.given import DEAD, OUTPUT, STATUS, WORKER, Given, check, names, status

STALL = StallEvidence("spool-full", "no room in it", ("a line",), "give it more", 30.0, lasts=True)
COPY = CopyEvidence("r1", "node7", 55, elsewhere=True, age_seconds=4.0)
THERE = Evidence(status=replace(STATUS, copied=True), output=OUTPUT, copy=COPY)
STILL = replace(THERE, status=status(copied=True))
LOST = replace(
    STILL, status=status(copied=True, held=False), copy=replace(COPY, age_seconds=7200.0)
)
HERE = replace(COPY, elsewhere=False, host="box")

CASES: list[Given] = [
    ("it moves", THERE, Verdict.HEALTHY, "progress on node7 1 s ago"),
    (
        "its watchdog knows best",
        replace(THERE, copy=replace(COPY, stall=STALL)),
        Verdict.SPOOL_FULL,
        "its watchdog on node7 reported 30 s ago: no room in it",
    ),
    (
        "a stall that is over",
        replace(THERE, copy=replace(COPY, stall=replace(STALL, lasts=False))),
        Verdict.HEALTHY,
        "",
    ),
    (
        "a verdict of another version",
        replace(STILL, copy=replace(COPY, stall=replace(STALL, verdict="cosmic-rays"))),
        Verdict.SERVER_HUNG,
        "8 requests wait",
    ),
    (
        "it waits for a server that is not seen from here",
        replace(STILL, status=status(copied=True, phase="waiting for server", in_flight=0)),
        Verdict.WAITING_FOR_SERVER,
        "on node7 waits",
    ),
    (
        "no progress, and nothing asked for",
        replace(STILL, status=status(copied=True, in_flight=0)),
        Verdict.CLIENT_STUCK,
        "has not said why yet",
    ),
    (
        "no sign of life",
        LOST,
        Verdict.CLIENT_DEAD,
        "r1 on node7 has given no sign of life for 2.0 h",
    ),
    (
        "no copy, but a claim of another host",
        Evidence(output=replace(OUTPUT, claimed_elsewhere="node7")),
        Verdict.CLIENT_DEAD,
        "the run on node7 gives no sign of life",
    ),
    (
        "the disk does not answer here, and nothing moves there",
        replace(STILL, output=replace(OUTPUT, read_answered=False, write_answered=None)),
        Verdict.OUTPUT_BLOCKED,
        "an attempt to look at it",
    ),
    (
        "ended there",
        Evidence(
            output=OUTPUT, copy=replace(COPY, exit_code=74, message="No space left on device")
        ),
        Verdict.CLIENT_DEAD,
        "the last run said: No space left on device",
    ),
    (
        "of this machine, its page hidden, its worker seen",
        replace(THERE, worker=WORKER, copy=HERE),
        Verdict.HEALTHY,
        "1 s ago",
    ),
    (
        "of this machine, and dead",
        replace(DEAD, status=status(copied=True, held=False), copy=HERE),
        Verdict.CLIENT_DEAD,
        "no process works on this store",
    ),
]


@pytest.mark.parametrize("given", CASES, ids=names(CASES))
def test_a_run_that_is_known_by_its_copy(given: Given) -> None:
    check(given)


def test_host_age_and_the_watchdogs_evidence_are_told() -> None:
    found = judge(replace(THERE, copy=replace(COPY, stall=STALL)), stalled_seconds=60)

    assert (
        "run r1 (pid 55 on node7, not here): by its copy beside the store, written 4 s ago by"
        in ("\n".join(found.evidence))
    )
    assert "node7: a line" in found.evidence
    assert found.advice == "on node7: give it more"


def test_nobody_is_told_to_take_over_without_having_looked_there() -> None:
    advice = judge(LOST, stalled_seconds=60).advice

    assert advice.startswith("ask there first: `hsstore doctor` on node7")
    assert "--take-over" in advice

"""Each verdict by the evidence that tells it from its neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extraction.diagnosis.evidence import HeartbeatEvidence
from extraction.diagnosis.judge import judge
from hsstore.verdict import Verdict
from tests.diagnosis import test_judge_client, test_judge_output, test_judge_server
from tests.diagnosis.given import (
    DISK,
    HEALTHY,
    IN_WRITE,
    LOOP,
    MAIN,
    OUTPUT,
    QUIET,
    SPOOL,
    STANDING,
    STATUS,
    Given,
    check,
    dumps,
    names,
    status,
    worker,
)

CASES: list[Given] = [
    ("it moves", HEALTHY, Verdict.HEALTHY, "1 s ago"),
    (
        "a write that is slow, not stuck",
        replace(HEALTHY, worker=worker(MAIN, IN_WRITE)),
        Verdict.HEALTHY,
        "",
    ),
    (
        "a probe that was slow while the run moves",
        replace(HEALTHY, output=replace(OUTPUT, write_answered=False)),
        Verdict.HEALTHY,
        "",
    ),
    (
        "reading data, and computing",
        replace(QUIET, status=status(phase="reading data", in_flight=0), worker=LOOP),
        Verdict.HEALTHY,
        "reading data",
    ),
    (
        "creating a store of many samples, and computing",
        replace(QUIET, status=status(phase="creating the store", in_flight=0), worker=LOOP),
        Verdict.HEALTHY,
        "creating the store",
    ),
    (
        "the server's heartbeat is progress",
        replace(HEALTHY, spool=replace(SPOOL, partial=dumps(41))),
        Verdict.HEALTHY,
        "",
    ),
]


@pytest.mark.parametrize("given", CASES, ids=names(CASES))
def test_slow_is_healthy(given: Given) -> None:
    check(given)


def test_every_verdict_is_reached_and_has_its_own_exit_code() -> None:
    others = (test_judge_output, test_judge_client, test_judge_server)
    reached = {case[2] for cases in (CASES, *(one.CASES for one in others)) for case in cases}

    assert reached == set(Verdict)
    assert len({verdict.exit_code for verdict in Verdict}) == len(Verdict)


@pytest.mark.parametrize("phase", ["waiting for server", "extracting"])
@pytest.mark.parametrize("heartbeat", [None, HeartbeatEvidence(300.0, 5, 500, 0, advanced=False)])
def test_a_client_that_waits_for_a_slow_server_is_never_called_stuck(
    phase: str, heartbeat: HeartbeatEvidence | None
) -> None:
    """Its page is fresh, and requests are in flight: of the handshake too."""
    waiting = replace(
        QUIET, status=status(phase=phase, in_flight=1), spool=replace(SPOOL, heartbeat=heartbeat)
    )

    found = judge(waiting, stalled_seconds=60)

    assert found.verdict in {Verdict.SERVER_HUNG, Verdict.WAITING_FOR_SERVER}
    if found.verdict is Verdict.SERVER_HUNG:
        assert "only wait (a larger --stall-after" in found.advice


def test_the_cost_of_a_kill_is_told_by_sample() -> None:
    spool = replace(SPOOL, finished=dumps(40) + dumps(7, run="dead"), partial=dumps(43))

    cost = judge(replace(HEALTHY, spool=spool), stalled_seconds=60).kill_cost

    assert cost.asked_again == (41, 42, 43)
    assert cost.kept_in_spool == (40,)
    assert cost.in_flight == 8
    assert "asked for again: samples 41, 42, 43" in cost.text
    assert "5 more requests in flight" in cost.text


def test_requests_that_are_no_samples_cost_nothing_and_are_not_unread() -> None:
    """Handshake and canary take numbers beyond the store's samples."""
    beyond = replace(STANDING, finished=dumps(100, 101), partial=dumps(102))

    found = judge(replace(QUIET, spool=beyond), stalled_seconds=60)

    assert found.kill_cost.kept_in_spool == ()
    assert found.kill_cost.asked_again == (41, 42)
    assert found.verdict == Verdict.SERVER_HUNG


def test_a_loop_that_is_only_late_is_no_reason_to_kill_it() -> None:
    late = replace(STATUS, updated_age_seconds=30.0, progress_age_seconds=30.0)

    found = judge(replace(HEALTHY, status=late), stalled_seconds=60)

    assert found.verdict == Verdict.CLIENT_STUCK
    assert "kill" not in found.advice


def test_what_could_not_be_seen_is_among_the_evidence() -> None:
    hidden = replace(DISK, wait_channel=None, unreadable="wait channel not shown")

    lines = judge(replace(QUIET, worker=worker(MAIN, hidden)), stalled_seconds=60).evidence

    assert "worker: of 1 threads wait channel not shown" in lines

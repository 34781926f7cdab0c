"""The client: dead, stopped, in a deadlock or an endless loop; the store that is finished or another's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extraction.diagnosis.evidence import (
    Evidence,
)
from hsstore.verdict import Verdict
from tests.diagnosis.given import (
    DEAD,
    DISK,
    IN_WRITE,
    LOOP,
    MAIN,
    OUTPUT,
    QUIET,
    SERVER,
    SPOOL,
    STUCK_DISK,
    STUCK_MAIN,
    WORKER,
    Given,
    check,
    names,
    stage,
    status,
    worker,
)

CASES: list[Given] = [
    (
        "all there",
        replace(DEAD, output=replace(OUTPUT, complete=99, failed=1)),
        Verdict.FINISHED,
        "",
    ),
    ("the client was killed", DEAD, Verdict.CLIENT_DEAD, "no process"),
    (
        "killed, by what the store tells alone",
        Evidence(output=replace(OUTPUT, last_result="interrupted")),
        Verdict.CLIENT_DEAD,
        "interrupted",
    ),
    (
        "another model",
        replace(DEAD, spool=replace(SPOOL, server=replace(SERVER, capture_hash="0" * 64))),
        Verdict.PLAN_MISMATCH,
        "capture hash",
    ),
    (
        "refused",
        replace(QUIET, status=status(exit_code=3, message="other data")),
        Verdict.PLAN_MISMATCH,
        "other data",
    ),
    (
        "damaged",
        replace(DEAD, output=replace(OUTPUT, unreadable_plan="zarr.json is damaged")),
        Verdict.PLAN_MISMATCH,
        "damaged",
    ),
    # The client.
    (
        "SIGSTOP",
        replace(QUIET, worker=worker(replace(MAIN, state="T"), replace(DISK, state="T"))),
        Verdict.CLIENT_STUCK,
        "stopped by a signal",
    ),
    (
        "an endless loop of the event loop",
        replace(
            QUIET,
            worker=replace(LOOP, stacks=STUCK_MAIN),
            status=status(updated_age_seconds=300.0),
        ),
        Verdict.CLIENT_STUCK,
        "an endless loop in a.py:3 spin",
    ),
    (
        "a deadlock of the event loop",
        replace(
            QUIET,
            worker=replace(WORKER, stacks=STUCK_MAIN),
            status=status(updated_age_seconds=300.0),
        ),
        Verdict.CLIENT_STUCK,
        "a deadlock in a.py:3 spin",
    ),
    (
        "a deadlock of a helper thread",
        replace(
            QUIET,
            worker=replace(WORKER, stacks=STUCK_DISK),
            status=status(stages=(stage("write", "sample 41"),)),
        ),
        Verdict.CLIENT_STUCK,
        "a deadlock in threading.py:5 acquire <- extraction/block_sink.py:7 put",
    ),
    (
        "an old snapshot of the disk's work proves nothing",
        replace(
            QUIET,
            worker=replace(LOOP, stacks=STUCK_MAIN),
            status=status(updated_age_seconds=300.0, stages=(stage("disk:write", "x"),)),
        ),
        Verdict.CLIENT_STUCK,
        "an endless loop",
    ),
    (
        "the disk of the data hangs",
        replace(
            QUIET,
            status=status(phase="reading data", in_flight=0),
            worker=worker(
                MAIN, replace(IN_WRITE, syscall="read", file="/in/d", mount="/in (nfs4)")
            ),
        ),
        Verdict.CLIENT_STUCK,
        "file /in/d, on /in (nfs4)",
    ),
]


@pytest.mark.parametrize("given", CASES, ids=names(CASES))
def test_the_client_is_dead_or_stuck_only_where_that_is_seen(given: Given) -> None:
    check(given)

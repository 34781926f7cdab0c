"""One verdict, with advice, for any evidence."""

from __future__ import annotations

from typing import get_args

from hypothesis import given, strategies as st

from extraction.diagnosis.evidence import (
    CopyEvidence,
    Evidence,
    HeartbeatEvidence,
    OutputEvidence,
    ProcessEvidence,
    ServerEvidence,
    SpoolEvidence,
    SpoolFileEvidence,
    StageEvidence,
    StallEvidence,
    StatusEvidence,
    ThreadEvidence,
)
from extraction.diagnosis.judge import judge
from extraction.status import Phase
from hsstore.verdict import Verdict
from tests.diagnosis.given import GB, MOUNT, SERVER, STORE

ages = st.one_of(st.just(0.0), st.just(30.0), st.just(1e6))
threads = st.lists(
    st.builds(
        ThreadEvidence,
        st.sampled_from([10, 11]),
        st.just("python"),
        st.sampled_from("RSDTZ"),
        st.sampled_from([None, "futex_do_wait", "request_wait_answer"]),
        st.sampled_from([None, "write"]),
        st.sampled_from([None, f"{STORE}/c", "pipe:[1]"]),
        st.sampled_from([None, MOUNT]),
        st.sampled_from([0.0, 1.0]),
    ),
    max_size=3,
).map(tuple)
files = st.lists(
    st.builds(SpoolFileEvidence, st.sampled_from(["r1", "x"]), st.integers(0, 9), ages, st.just(9)),
    max_size=3,
).map(tuple)
statuses = st.builds(
    StatusEvidence,
    st.just("r1"),
    st.just(STORE),
    st.sampled_from(get_args(Phase)),
    held=st.booleans(),
    updated_age_seconds=ages,
    progress_age_seconds=ages,
    exit_code=st.sampled_from([None, 0, 1, 3, 74, 75]),
    in_flight=st.integers(0, 2),
    stages=st.lists(
        st.builds(
            StageEvidence,
            st.sampled_from(["check", "write", "give-back", "answered", "disk:write"]),
            st.integers(0, 2),
            st.one_of(st.none(), ages),
        ),
        max_size=3,
    ).map(tuple),
)
spools = st.builds(
    SpoolEvidence,
    st.just("/dev/shm/s"),
    server_lock_held=st.booleans(),
    server=st.sampled_from([None, SERVER]),
    heartbeat=st.one_of(
        st.none(),
        st.builds(
            HeartbeatEvidence, ages, st.just(1), st.just(1), st.integers(0, 1), st.booleans()
        ),
    ),
    finished=files,
    partial=files,
    headroom_bytes=st.sampled_from([None, 0, GB]),
    missing=st.booleans(),
)
outputs = st.builds(
    OutputEvidence,
    st.just(STORE),
    mount=st.sampled_from(["", MOUNT]),
    read_answered=st.sampled_from([None, True, False]),
    write_answered=st.sampled_from([None, True, False]),
    write_error=st.sampled_from(["", "No space left on device"]),
    free_bytes=st.sampled_from([None, 0, GB]),
    read_only=st.booleans(),
    exists=st.sampled_from([None, True, False]),
    unreadable_plan=st.sampled_from(["", "damaged"]),
    capture_hash=st.sampled_from(["", "f" * 64, "0" * 64]),
    samples=st.sampled_from([0, 10]),
    complete=st.sampled_from([0, 10]),
    newest_write_age_seconds=st.one_of(st.none(), ages),
)
workers = st.builds(ProcessEvidence, st.just(10), st.just("worker"), st.booleans(), threads=threads)
servers = st.builds(
    ServerEvidence, st.just("http://s"), st.sampled_from(["ok", "refused", "no answer"])
)
copies = st.builds(
    CopyEvidence,
    st.just("r1"),
    st.just("node7"),
    st.just(10),
    st.booleans(),
    ages,
    exit_code=st.sampled_from([None, 0, 1, 3, 74, 75]),
    stall=st.one_of(
        st.none(),
        st.builds(
            StallEvidence,
            st.sampled_from([*Verdict, "of-another-version"]),
            st.just("why"),
            st.just(("a line",)),
            st.just("advice"),
            ages,
            st.booleans(),
        ),
    ),
)
anything = st.builds(
    Evidence,
    *[st.one_of(st.none(), part) for part in (statuses, workers, spools, servers, outputs, copies)],
)


@given(anything)
def test_any_evidence_gives_one_verdict_with_advice(evidence: Evidence) -> None:
    found = judge(evidence, stalled_seconds=60)

    assert found.verdict in Verdict
    assert found.summary
    assert found.advice
    assert found.kill_cost.text

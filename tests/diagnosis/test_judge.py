"""Each verdict by the evidence that tells it from its neighbours, and one verdict for any evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from extraction.diagnosis.evidence import (
    NOT_ASKED,
    AnnouncementEvidence,
    Evidence,
    HeartbeatEvidence,
    OutputEvidence,
    ProcessEvidence,
    ServerEvidence,
    SpoolEvidence,
    SpoolFileEvidence,
    StackEvidence,
    StageEvidence,
    StatusEvidence,
    ThreadEvidence,
)
from extraction.diagnosis.judge import judge
from extraction.status import Phase
from hsstore.verdict import Verdict

GB = 1 << 30
STORE, MOUNT = "/data/s.zarr", "/data (nfs4, box:/x)"
MAIN = ThreadEvidence(10, "python", "S", "do_epoll_wait", "epoll_wait", "anon_inode:[eventpoll]")
DISK = ThreadEvidence(11, "python", "S", "futex_do_wait", "futex")
WORKER = ProcessEvidence(10, "worker", alive=True, threads=(MAIN, DISK))
IN_WRITE = replace(
    DISK, state="D", wait_channel="rpc_wait_bit_killable", syscall="write",
    file=f"{STORE}/hidden_states/c.3.partial", mount=MOUNT,
)  # fmt: skip
SERVER = AnnouncementEvidence("i", "f" * 64, "sglang", 20, "box", "")
SPOOL = SpoolEvidence(
    "/dev/shm/s", server_lock_held=True, client_lock_held=True, server=SERVER,
    heartbeat=HeartbeatEvidence(0.1, 5, 500, 0, advanced=True),
    headroom_bytes=GB, total_bytes=GB,
)  # fmt: skip
OUTPUT = OutputEvidence(
    STORE, mount=MOUNT, read_answered=True, write_answered=True, deadline_seconds=5,
    free_bytes=GB, total_bytes=2 * GB, free_inodes=1000, exists=True,
    capture_hash="f" * 64, samples=100, complete=40,
)  # fmt: skip
STATUS = StatusEvidence(
    "r1", STORE, "extracting", held=True, updated_age_seconds=0.1, progress_age_seconds=1.0,
    samples=100, done=40, in_flight=8, at_risk=(41, 42),
)  # fmt: skip
STALLED = replace(STATUS, progress_age_seconds=300.0)
HEALTHY = Evidence(STATUS, WORKER, SPOOL, ServerEvidence("http://s", "ok"), OUTPUT)
QUIET = replace(HEALTHY, status=STALLED)
STANDING = replace(SPOOL, heartbeat=HeartbeatEvidence(300.0, 5, 500, 0, advanced=False))
DEAD = replace(HEALTHY, status=replace(STALLED, held=False), worker=replace(WORKER, alive=False))


def dumps(*samples: int, run: str = "r1") -> tuple[SpoolFileEvidence, ...]:
    return tuple(SpoolFileEvidence(run, sample, 300.0, 1000) for sample in samples)


def worker(*threads: ThreadEvidence, **changes: Any) -> ProcessEvidence:
    return replace(WORKER, threads=threads, **changes)


def status(**changes: Any) -> StatusEvidence:
    return replace(STALLED, **changes)


def stage(name: str, detail: str = "", age: float = 300.0, items: int = 1) -> StageEvidence:
    return StageEvidence(name, items, age, detail)


LOOP = worker(replace(MAIN, state="R", wait_channel=None, syscall=None, cpu_share=0.98), DISK)
STUCK_MAIN = (StackEvidence("0x1", ("a.py:3 spin", "extraction/worker.py:9 main")),)
STUCK_DISK = (StackEvidence("0x2", ("threading.py:5 acquire", "extraction/block_sink.py:7 put")),)
FUSE_WAIT = replace(DISK, wait_channel="request_wait_answer", syscall="rename")

CASES: list[tuple[str, Evidence, Verdict, str]] = [
    # The run as it should be, and what only looks bad.
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
        "the server's heartbeat is progress",
        replace(HEALTHY, spool=replace(SPOOL, partial=dumps(41))),
        Verdict.HEALTHY,
        "",
    ),
    # The disk.
    (
        "a thread in D in a file of the store",
        replace(QUIET, worker=worker(MAIN, IN_WRITE)),
        Verdict.OUTPUT_BLOCKED,
        "c.3.partial on /data (nfs4, box:/x)",
    ),
    (
        "a store that is given by a link: the kernel names its true path",
        replace(
            QUIET,
            worker=worker(MAIN, replace(IN_WRITE, file="/true/s.zarr/c.1", mount=None)),
            status=status(store_real="/true/s.zarr"),
        ),
        Verdict.OUTPUT_BLOCKED,
        "/true/s.zarr/c.1",
    ),
    (
        "a FUSE call that names no file",
        replace(
            QUIET,
            worker=worker(MAIN, FUSE_WAIT),
            status=status(stages=(stage("disk:rename", "/data/s.zarr/c.1"),)),
        ),
        Verdict.OUTPUT_BLOCKED,
        "rename of /data/s.zarr/c.1",
    ),
    (
        "D without a wait channel: not root",
        replace(
            QUIET,
            worker=worker(MAIN, ThreadEvidence(11, "python", "D", unreadable="not shown")),
            output=None,
        ),
        Verdict.OUTPUT_BLOCKED,
        "in state D",
    ),
    (
        "nothing but the run's own word: no /proc at all",
        replace(
            QUIET,
            worker=worker(unreadable="its threads unreadable"),
            status=status(stages=(stage("disk:fsync", "/data/s.zarr/c.1"),)),
            output=None,
        ),
        Verdict.OUTPUT_BLOCKED,
        "fsync of /data/s.zarr/c.1",
    ),
    (
        "nothing but the probe",
        replace(QUIET, output=replace(OUTPUT, read_answered=False, write_answered=None)),
        Verdict.OUTPUT_BLOCKED,
        "an attempt to look at it",
    ),
    (
        "killed, and still there",
        replace(QUIET, worker=worker(replace(MAIN, state="Z"), IN_WRITE)),
        Verdict.OUTPUT_BLOCKED,
        "was killed and stays",
    ),
    (
        "nothing runs, and nothing could",
        replace(DEAD, output=replace(OUTPUT, write_answered=False)),
        Verdict.OUTPUT_BLOCKED,
        "",
    ),
    ("full", replace(DEAD, output=replace(OUTPUT, free_bytes=4096)), Verdict.OUTPUT_FULL, "4,096"),
    (
        "out of inodes",
        replace(DEAD, output=replace(OUTPUT, free_inodes=0)),
        Verdict.OUTPUT_FULL,
        "inodes",
    ),
    (
        "over quota, by the last word",
        replace(QUIET, status=status(exit_code=74, message="Disk quota exceeded")),
        Verdict.OUTPUT_FULL,
        "quota",
    ),
    (
        "read-only",
        replace(DEAD, output=replace(OUTPUT, read_only=True)),
        Verdict.OUTPUT_BLOCKED,
        "read-only",
    ),
    (
        "an input/output error",
        replace(DEAD, output=replace(OUTPUT, write_error="x: Input/output error")),
        Verdict.OUTPUT_BLOCKED,
        "refuses writes",
    ),
    (
        "a write that hangs while the server's heart beats",
        replace(HEALTHY, status=replace(STATUS, stages=(stage("disk:write", f"{STORE}/c.1"),))),
        Verdict.OUTPUT_BLOCKED,
        f"write of {STORE}/c.1 has not returned for 300 s",
    ),
    (
        "the same, and the probe hangs too",
        replace(
            HEALTHY,
            status=replace(STATUS, stages=(stage("disk:open", f"{STORE}/c.1"),)),
            output=replace(OUTPUT, write_answered=False),
        ),
        Verdict.OUTPUT_BLOCKED,
        "an attempt to write to it",
    ),
    (
        "an fsync takes as long as the data before it",
        replace(HEALTHY, status=replace(STATUS, stages=(stage("disk:fsync", f"{STORE}/c.1"),))),
        Verdict.HEALTHY,
        "",
    ),
    (
        "nothing but an fsync that takes long",
        replace(QUIET, status=status(stages=(stage("disk:fsync", f"{STORE}/c.1"),))),
        Verdict.OUTPUT_BLOCKED,
        f"is slow, or does not answer: fsync of {STORE}/c.1 takes 300 s",
    ),
    # Nothing runs.
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
    # The spool.
    (
        "no room for a dump",
        replace(QUIET, spool=replace(SPOOL, headroom_bytes=0, reusable_bytes=0)),
        Verdict.SPOOL_FULL,
        "",
    ),
    (
        "nothing but refusals of a full spool",
        replace(
            QUIET, status=status(in_flight=0, only_busy="full: 9 bytes needed, 5 may be taken")
        ),
        Verdict.SPOOL_FULL,
        "9 bytes needed, 5 may be taken",
    ),
    (
        "nothing but refusals for want of buffers",
        replace(QUIET, status=status(in_flight=1, only_busy="overrun: 3 chunks wait")),
        Verdict.DUMP_MISSING,
        "overrun: 3 chunks wait",
    ),
    (
        "unread dumps",
        replace(
            QUIET,
            spool=replace(SPOOL, finished=dumps(40, 41, 42)),
            status=status(stages=(stage("give-back", items=1),)),
        ),
        Verdict.DUMP_UNREAD,
        "2 finished dumps",
    ),
    (
        "unread dumps before anything was ever appended",
        replace(QUIET, spool=replace(SPOOL, finished=dumps(40, 41)), status=status()),
        Verdict.DUMP_UNREAD,
        "2 finished dumps",
    ),
    (
        "dumps that wait for their block's commit are not unread",
        replace(
            QUIET,
            spool=replace(STANDING, finished=dumps(40, 41)),
            status=status(stages=(stage("give-back", items=2),)),
        ),
        Verdict.SERVER_HUNG,
        "",
    ),
    # The server.
    (
        "announced, and not healthy yet",
        replace(
            QUIET,
            status=status(phase="waiting for server", in_flight=0),
            spool=STANDING,
            server=ServerEvidence("http://s", "refused"),
        ),
        Verdict.WAITING_FOR_SERVER,
        "does not answer /health yet",
    ),
    (
        "it hangs in the handshake",
        replace(QUIET, status=status(phase="handshake", in_flight=1), spool=STANDING),
        Verdict.SERVER_HUNG,
        "",
    ),
    (
        "stopped, as the supervisor sees it without asking",
        replace(
            QUIET,
            spool=STANDING,
            server=ServerEvidence(
                "http://s",
                NOT_ASKED,
                process=ProcessEvidence(
                    20, "server", alive=True, threads=(replace(MAIN, state="T"),)
                ),
            ),
        ),
        Verdict.SERVER_HUNG,
        "process 20 is stopped",
    ),
    (
        "not asked is no bad health",
        replace(
            QUIET,
            spool=STANDING,
            server=ServerEvidence("http://s", NOT_ASKED),
            status=status(stages=(stage("answered", items=8),)),
        ),
        Verdict.DUMP_MISSING,
        "8 requests",
    ),
    (
        "a client in another container is not dead",
        replace(QUIET, worker=None, spool=STANDING),
        Verdict.SERVER_HUNG,
        "",
    ),
    (
        "loading",
        replace(
            QUIET, status=status(phase="waiting for server"), spool=replace(SPOOL, server=None)
        ),
        Verdict.WAITING_FOR_SERVER,
        "loading",
    ),
    (
        "not there yet",
        replace(
            HEALTHY,
            status=replace(STATUS, phase="waiting for server"),
            spool=replace(SPOOL, server=None, server_lock_held=False),
        ),
        Verdict.WAITING_FOR_SERVER,
        "no server",
    ),
    (
        "not there for too long",
        replace(
            QUIET,
            status=status(phase="waiting for server"),
            spool=replace(SPOOL, server=None, server_lock_held=False),
        ),
        Verdict.SERVER_DOWN,
        "held by no server",
    ),
    (
        "killed",
        replace(QUIET, spool=replace(STANDING, server_lock_held=False)),
        Verdict.SERVER_DOWN,
        "held by no server",
    ),
    (
        "its port refuses",
        replace(QUIET, spool=STANDING, server=ServerEvidence("http://s", "refused")),
        Verdict.SERVER_DOWN,
        "refuses",
    ),
    (
        "no answer",
        replace(QUIET, spool=STANDING, server=ServerEvidence("http://s", "no answer")),
        Verdict.SERVER_HUNG,
        "no answer",
    ),
    (
        "stopped",
        replace(
            QUIET,
            spool=STANDING,
            server=ServerEvidence(
                "http://s",
                "no answer",
                process=ProcessEvidence(
                    20, "server", alive=True, threads=(replace(MAIN, state="T"),)
                ),
            ),
        ),
        Verdict.SERVER_HUNG,
        "process 20 is stopped",
    ),
    (
        "healthy by its own word, and nothing computed",
        replace(QUIET, spool=STANDING),
        Verdict.SERVER_HUNG,
        "",
    ),
    (
        "a forward that takes long, the first one of all",
        replace(QUIET, spool=replace(SPOOL, heartbeat=None)),
        Verdict.SERVER_HUNG,
        "8 requests wait",
    ),
    (
        "all answered, no dump",
        replace(QUIET, spool=STANDING, status=status(stages=(stage("answered", items=8),))),
        Verdict.DUMP_MISSING,
        "8 requests",
    ),
    (
        "nothing explains it",
        replace(QUIET, status=status(in_flight=0)),
        Verdict.CLIENT_STUCK,
        "look well",
    ),
]


@pytest.mark.parametrize(
    ("evidence", "verdict", "text"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_verdict_follows_from_the_evidence(
    evidence: Evidence, verdict: Verdict, text: str
) -> None:
    found = judge(evidence, stalled_seconds=60)

    assert found.verdict == verdict, found
    assert text in found.summary
    assert found.advice


def test_every_verdict_is_reached_and_has_its_own_exit_code() -> None:
    assert {case[2] for case in CASES} == set(Verdict)
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


# --- any evidence -------------------------------------------------------------------------------

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
anything = st.builds(
    Evidence,
    *[st.one_of(st.none(), part) for part in (statuses, workers, spools, servers, outputs)],
)


@given(anything)
def test_any_evidence_gives_one_verdict_with_advice(evidence: Evidence) -> None:
    found = judge(evidence, stalled_seconds=60)

    assert found.verdict in Verdict
    assert found.summary
    assert found.advice
    assert found.kill_cost.text

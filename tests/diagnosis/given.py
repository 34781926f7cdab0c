"""A run that is well, and the ways in which tests make it ill."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from extraction.diagnosis.evidence import (
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

if TYPE_CHECKING:
    from hsstore.verdict import Verdict

Given: TypeAlias = "tuple[str, Evidence, Verdict, str]"
"""What it is about, the evidence, the verdict, and a part of the summary."""

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


def check(given: Given) -> None:
    """Judge."""
    _, evidence, verdict, text = given
    found = judge(evidence, stalled_seconds=60)

    assert found.verdict == verdict, found
    assert text in found.summary, found.summary
    assert found.advice


def names(cases: list[Given]) -> list[str]:
    """Name cases for pytest."""
    return [case[0] for case in cases]

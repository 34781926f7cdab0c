"""What the supervisor may do while every disk hangs: look at /proc and shared memory, and judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from extraction.diagnosis.collect import collect_local, status_evidence
from extraction.diagnosis.evidence import NOT_ASKED
from extraction.diagnosis.judge import judge
from extraction.spool import ClientInfo, SpoolClient, SpoolServer
from extraction.status import RunStatus, ServerPhase, ServerState, StageState, StatusPage
from hsstore.verdict import Verdict
from tests.faults.fake import serving

PROGRAM = """
import json, sys
from pathlib import Path
from extraction.diagnosis.collect import collect_local
from extraction.diagnosis.judge import judge

page = Path(sys.argv[1])
events = []
def record(event, arguments):
    if event in {"open", "import", "os.listdir", "os.scandir", "exec", "compile"}:
        events.append([event, str(arguments[0])])
sys.addaudithook(record)
judge(collect_local(page, sample_seconds=0), stalled_seconds=1)
seen = list(events)
print(json.dumps(seen))
"""


def test_a_run_in_another_container_is_alive_while_its_page_is_held() -> None:
    """Shared memory may be shared where process ids are not."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as name:
        page = StatusPage.create(Path(name), "/nowhere/s.zarr")
        status = RunStatus(
            run="r1", store="/nowhere/s.zarr", worker_pid=2**22, pid_namespace="pid:[1]"
        )
        page.write(status)
        held = collect_local(page.path, sample_seconds=0)
        page.unlock()
        dead = collect_local(page.path, sample_seconds=0)
        page.remove()

    assert held.worker is None
    assert judge(held, stalled_seconds=60).verdict != Verdict.CLIENT_DEAD
    assert judge(dead, stalled_seconds=60).verdict == Verdict.CLIENT_DEAD


def test_the_server_is_seen_from_outside_without_being_asked() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as name:
        page = StatusPage.create(Path(name) / "pages", "/nowhere/s.zarr")
        with serving(Path(name) / "spool", 3) as fake:
            ours = replace(fake.server.info, pid=os.getpid(), host=os.uname().nodename)
            fake.server.spool.announce(ours)
            page.write(RunStatus(run="r1", spool=str(fake.spool), server=fake.url))
            server = collect_local(page.path, sample_seconds=0).server
        page.remove()

    assert server is not None
    assert server.health == NOT_ASKED
    assert server.process is not None
    assert (server.process.pid, server.process.alive) == (os.getpid(), True)


def test_looking_and_judging_opens_nothing_but_proc_and_shared_memory_and_imports_nothing() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsstore-test-") as name:
        room = Path(name)
        with (
            SpoolServer(room / "spool") as server,
            SpoolClient(room / "spool", ClientInfo("r1", "x")),
        ):
            server.beat(forwards=1, queue_depth=0)
            page = StatusPage.create(room / "pages", "/nowhere/s.zarr")
            page.write(
                RunStatus(
                    run="r1", store="/nowhere/s.zarr", spool=str(room / "spool"), worker_pid=1
                )
            )
            command: list[str | Path] = [sys.executable, "-c", PROGRAM, page.path]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            page.remove()

    events = json.loads(ended.stdout)
    assert len(events) > 5
    elsewhere = [
        (event, path)
        for event, path in events
        if event in {"import", "compile", "exec"}
        or not (path.isdigit() or path.startswith(("/proc", "/dev/shm", "/sys/fs/cgroup")))
    ]
    assert elsewhere == []


@pytest.mark.parametrize(
    ("states", "seen", "unserved"),
    [
        (("waiting", "parked"), 2, False),
        (("dropped", "up"), 0, False),  # one is hoped for: the page names it as the server
        (("dropped", "leaving"), 0, True),
    ],
)
def test_the_servers_that_a_run_hopes_for_are_looked_at(
    tmp_path: Path, states: tuple[ServerPhase, ...], seen: int, *, unserved: bool
) -> None:
    servers = tuple(ServerState(url="http://s", spool="/none", state=state) for state in states)
    url = "" if unserved else "http://s"
    page = StatusPage.create(tmp_path / "pages", "/x")
    page.write(RunStatus(run="r", phase="waiting for server", server=url, servers=servers))

    evidence = collect_local(page.path, sample_seconds=0)
    page.remove()

    assert len(evidence.servers) == seen
    assert evidence.status is not None
    assert evidence.status.unserved is unserved


def test_a_page_without_a_run_and_a_spool_that_is_gone_are_evidence_too(tmp_path: Path) -> None:
    page = StatusPage.create(tmp_path / "pages", "/x")

    evidence = collect_local(page.path, tmp_path / "none", sample_seconds=0)
    page.remove()

    assert evidence.status is None
    assert evidence.spool is not None
    assert evidence.spool.missing


def test_a_clock_that_was_set_back_makes_no_negative_ages() -> None:
    later = time.time() + 3600
    stage = StageState(name="write", items=1, oldest_since_seconds=later)
    status = RunStatus(run="r", updated_seconds=later, progress_seconds=later, stages=(stage,))

    found = status_evidence(status, held=True)

    assert found.updated_age_seconds == 0
    assert found.progress_age_seconds == 0
    assert found.stages[0].oldest_age_seconds == 0

"""A disk that refuses writes: one sentence with its name and size, exit 74, and a rerun completes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from extraction.diagnosis.examine import collect_all
from extraction.diagnosis.judge import judge
from hsstore.verdict import Verdict
from hsstore.verify import verify_store
from tests.extraction.fake_server import serve_fake
from tests.extraction.processes import left_claims, verify
from tests.extraction.running import Outcome, run_here
from tests.faults.conftest import SAMPLES
from tests.faults.lab import read_only, use_up_bytes, use_up_inodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.faults.lab import Fuse

PATIENT: dict[str, Any] = {"request_timeout_seconds": 60, "max_in_flight": 4}


async def run_into(
    store: Path, room: Path, data: Path, trouble: Callable[[], AbstractContextManager[None]]
) -> tuple[Outcome, Verdict]:
    """Run until there is trouble, look at it, and complete the store once it is over."""
    async with serve_fake(room / "spool", SAMPLES) as server:
        run = asyncio.create_task(run_here(store, server.url, room / "spool", data, **PATIENT))
        await server.wait_for_requests(60)
        server.hold = asyncio.Event()
        with trouble():
            server.hold.set()
            async with asyncio.timeout(60):
                outcome = await run
            asked = len(server.requests)
            evidence = await asyncio.to_thread(collect_all, store)
            verdict = judge(evidence, stalled_seconds=1).verdict
        committed = await asyncio.to_thread(verify_store, store)
        again = await run_here(store, server.url, room / "spool", **PATIENT)

    assert asked < SAMPLES  # it stopped asking
    assert committed.ok, committed
    assert again.code == 0, again.message
    assert again.status.complete == committed.checked < SAMPLES
    assert left_claims(store) == []
    verify(store, SAMPLES)
    return outcome, verdict


async def test_a_full_disk(disk: Path, room: Path, data: Path) -> None:
    @contextmanager
    def full() -> Iterator[None]:
        filler = use_up_bytes(disk)
        yield
        filler.unlink()

    outcome, verdict = await run_into(disk / "s.zarr", room, data, full)

    assert outcome.code == 74, outcome.message
    assert f"cannot write {disk}/s.zarr" in outcome.message
    assert "No space left on device (0.00 GB free of 0.06 GB); free space" in outcome.message
    assert verdict == Verdict.OUTPUT_FULL


async def test_a_disk_without_inodes(disk: Path, room: Path, data: Path) -> None:
    @contextmanager
    def crowded() -> Iterator[None]:
        crowd = use_up_inodes(disk)
        yield
        for path in crowd.iterdir():
            path.unlink()
        crowd.rmdir()

    outcome, verdict = await run_into(disk / "s.zarr", room, data, crowded)

    assert outcome.code == 74, outcome.message
    assert "No space left on device" in outcome.message
    assert "inode" in outcome.message
    assert verdict == Verdict.OUTPUT_FULL


async def test_a_disk_that_is_remounted_read_only(fuse: Fuse, room: Path, data: Path) -> None:
    outcome, verdict = await run_into(fuse.mount / "s.zarr", room, data, lambda: fuse.set("EROFS"))

    assert outcome.code == 74, outcome.message
    assert "Read-only file system" in outcome.message
    assert "remount it writable" in outcome.message
    assert verdict in {Verdict.OUTPUT_BLOCKED, Verdict.CLIENT_DEAD}  # no file without a name there


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("EIO", "Input/output error"),
        ("EDQUOT", "the quota is used up"),
        ("ESTALE", "Stale file handle"),
    ],
)
async def test_errors_of_a_disk_are_said_with_what_to_do(
    fuse: Fuse, room: Path, data: Path, fault: str, text: str
) -> None:
    outcome, _ = await run_into(fuse.mount / "s.zarr", room, data, lambda: fuse.set(fault))

    assert outcome.code == 74, outcome.message
    assert text in outcome.message
    assert "run the same command again" in outcome.message


@pytest.mark.parametrize("operation", ["fsync", "fsyncdir", "rename", "write", "create"])
async def test_an_operation_that_fails_loses_nothing_wherever_it_is(
    fuse: Fuse, room: Path, data: Path, operation: str
) -> None:
    outcome, _ = await run_into(
        fuse.mount / "s.zarr", room, data, lambda: fuse.set("EIO", operation)
    )

    assert outcome.code == 74, outcome.message
    assert "Input/output error" in outcome.message


async def test_a_whole_ext4_that_turns_read_only(disk: Path, room: Path, data: Path) -> None:
    """The next run: files that are open keep a mount from being remounted."""
    store = disk / "s.zarr"
    async with serve_fake(room / "spool", SAMPLES) as server:
        first = asyncio.create_task(run_here(store, server.url, room / "spool", data, **PATIENT))
        await server.wait_for_requests(60)
        os.kill(os.getpid(), signal.SIGTERM)
        stopped = await first
        with read_only(disk):
            outcome = await run_here(store, server.url, room / "spool", **PATIENT)
            evidence = await asyncio.to_thread(collect_all, store)
        again = await run_here(store, server.url, room / "spool", **PATIENT)

    assert stopped.code == 75, stopped.message
    assert outcome.code == 74, outcome.message
    assert "Read-only file system" in outcome.message
    found = judge(evidence, stalled_seconds=1)
    assert found.verdict == Verdict.OUTPUT_BLOCKED
    assert "mounted read-only" in found.summary
    assert again.code == 0, again.message
    verify(store, SAMPLES)

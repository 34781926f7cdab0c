"""Servers that are not there, or go away, and an output that does not take any more."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import numpy as np
import psutil

from hsstore.store import Store
from tests.extraction.fake_server import serve_fake
from tests.extraction.gate import gated
from tests.extraction.processes import (
    SMALL_STORE,
    Extraction,
    left_claims,
    verify,
    wait_until,
)
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extraction.processes import Server


async def test_a_server_that_does_not_come_ends_the_run_after_the_wait(
    store: Path, data: Path
) -> None:
    began = time.monotonic()
    outcome = await run_here(
        store, "http://127.0.0.1:1", store.parent / "none", data, server_wait_seconds=0.5
    )

    assert outcome.code == 75
    assert 0.5 <= time.monotonic() - began < 60
    assert "no spool at" in outcome.message
    assert "start the server" in outcome.message
    assert not store.exists()


async def test_a_server_that_never_answers_ends_the_run_after_the_wait(
    store: Path, data: Path
) -> None:
    async with serve_fake(store.parent / "spool", 61) as server:
        path = server.spool.directory.path
        outcome = await run_here(store, "http://127.0.0.1:1", path, data, server_wait_seconds=1.0)

    assert outcome.code == 75
    assert "server http://127.0.0.1:1 did not answer for 1 s" in outcome.message
    assert "run the same command again" in outcome.message


async def test_a_server_that_goes_away_for_good_ends_the_run_and_what_came_is_committed(
    store: Path, data: Path
) -> None:
    async with serve_fake(store.parent / "spool", 61) as server:
        path = server.spool.directory.path
        server.hold, server.held = asyncio.Event(), set(range(20, 61))
        run = asyncio.create_task(
            run_here(store, server.url, path, data, server_wait_seconds=1.0, max_in_flight=2)
        )
        await server.wait_for_requests(20)
        await server.leave()
        outcome = await run

    completion = Store.open(store).completion()
    assert outcome.code == 75
    assert "did not answer for 1 s" in outcome.message
    assert 15 <= np.count_nonzero(completion.complete) < 61
    assert left_claims(store) == []


async def test_a_server_that_comes_back_as_another_model_is_refused(
    store: Path, data: Path
) -> None:
    async with serve_fake(store.parent / "spool", 61) as server:
        path = server.spool.directory.path
        server.hold, server.held = asyncio.Event(), set(range(20, 61))
        run = asyncio.create_task(run_here(store, server.url, path, data, max_in_flight=2))
        await server.wait_for_requests(20)
        server.become(capture_hash="0" * 64)
        server.hold.set()
        outcome = await run

    assert outcome.code == 3
    assert "the server came back with another model" in outcome.message
    assert 0 < np.count_nonzero(Store.open(store).completion().complete) < 61


def test_an_output_that_takes_no_more_ends_the_run_with_74_and_the_next_one_continues(
    server: Server, store: Path, room: Path
) -> None:
    large = write_data(room / "large.jsonl", [900] * 12)
    options = ("--data", large, "--chunk-rows", "256", "--shard-rows", "2048")
    with gated(server, 12, 0) as gate:
        run = Extraction(store, gate, *options, "--max-in-flight", "1")
        run.wait_for(lambda status: status.phase == "extracting" and status.in_flight > 0)
        worker = run.worker()
        assert worker is not None
        limit = 600_000  # less than a shard, more than the first sample
        psutil.Process(worker.pid).rlimit(psutil.RLIMIT_FSIZE, (limit, limit))
        gate.open()
        full = run.wait()

    resumed = asyncio.run(run_here(store, server.url, server.spool))

    assert full.code == 74, full.log
    assert "cannot write" in full.log
    assert "File too large" in full.log
    assert "Traceback" not in full.log
    assert list(store.rglob("*.partial")) == []
    assert resumed.code == 0, resumed.message
    verify(store, 12)


def test_an_expired_request_is_given_up_only_when_the_heartbeat_stands_still(
    server: Server, store: Path, data: Path
) -> None:
    with gated(server, 61, 20) as gate:
        run = Extraction(store, gate, "--data", data, *SMALL_STORE, "--request-timeout", "0.5")
        wait_until(lambda: gate.answered == 20)
        server.signal(signal.SIGSTOP)
        gate.open()
        try:
            # Requests that it had answered but not written are asked for again too, for another reason.
            wait_until(lambda: "no answer and no heartbeat for" in run.log())
        finally:
            server.signal(signal.SIGCONT)
        ended = run.wait()

    assert ended.code == 0, ended.log
    verify(store, 61)

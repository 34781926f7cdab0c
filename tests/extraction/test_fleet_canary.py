"""The canary is asked of each server: one whose states depend on its load spoils nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

import extraction.fleet
from hsstore.store import Store
from hsstore.verify import verify_store
from tests.extraction.fleets import run, run_with_file, serve, wait_until, write
from tests.extraction.test_canary import SAMPLES, count_wrong, partial_sum
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_a_server_with_other_states_under_load_is_dropped_before_it_is_used(
    store: Path, room: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = write_data(room / "two-servers.jsonl", [40] * SAMPLES)
    async with serve(store, "good", "bad", samples=SAMPLES, isolated=False) as (good, bad):
        good.batching_seconds = bad.batching_seconds = 0.02
        bad.batch_fault = partial_sum
        good.hold = asyncio.Event()
        running = asyncio.create_task(run(store, [good, bad], few, max_in_flight=4))
        await wait_until(lambda: f"server {bad.url} is not used: " in caplog.text)
        good.hold.set()
        outcome = await running
        wrong = count_wrong(store, good)

    assert outcome.code == 0, outcome.message
    assert f"server {bad.url} is not used: canary: the server computes other states" in outcome.log
    assert wrong == 0
    (record,) = Store.open(store).runs()
    verdicts = {one.url: one.canary.verdict for one in record.servers if one.canary}
    assert verdicts == {good.url: "same", bad.url: "wrong"}


async def test_what_others_have_committed_stays_when_they_leave_one_that_was_dropped_for_its_states(
    store: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.fleet, "LOOK_SECONDS", 0.1)
    many = write_data(room / "one-of-two.jsonl", [40] * 600)
    async with serve(store, "good", "bad", samples=600, isolated=False) as (good, bad):
        good.batching_seconds = bad.batching_seconds = 0.02
        bad.batch_fault = partial_sum
        file = write(store.parent / "servers.txt", good, bad)
        running = asyncio.create_task(
            run_with_file(store, file, many, server_wait_seconds=1.0, spool_budget_bytes=1 << 20)
        )
        await good.wait_for_requests(120)
        file.write_text("")
        outcome = await running

    assert (outcome.code, outcome.message) == (75, f"no server is left: {file} names none")
    assert np.count_nonzero(Store.open(store).completion().complete) > 0
    assert verify_store(store).ok


async def test_one_that_begins_to_in_mid_run_ends_it_and_what_it_may_have_spoilt_is_taken_back(
    store: Path, room: Path
) -> None:
    many = write_data(room / "many-for-two.jsonl", [40] * 200)
    async with serve(store, "good", "bad", samples=200, isolated=False) as (good, bad):
        good.batching_seconds = bad.batching_seconds = 0.02
        running = asyncio.create_task(
            run(store, [good, bad], many, canary_pause_seconds=0, max_in_flight=4)
        )
        await bad.wait_for_requests(20)
        bad.batch_fault = partial_sum
        outcome = await running
        wrong = count_wrong(store, good)

    assert outcome.code == 3, outcome.message
    assert "are pending again" in outcome.message
    assert wrong == 0
    assert np.count_nonzero(Store.open(store).completion().complete) < 200
    assert verify_store(store).ok

"""Servers whose states depend on what else they compute: nothing wrong is committed unnoticed."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import extraction.asking
import extraction.canary
from extraction.deviation import smallest_threshold
from extraction.handshake import SPREAD_REQUESTS
from hsstore.spec import CanaryRecord
from hsstore.store import Store
from hsstore.verify import verify_store
from tests.extraction.fake_model import Fault, fake_states
from tests.extraction.fake_server import FakeServer, serve_fake
from tests.extraction.running import Outcome, run_here
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

SAMPLES = 24
SLOT = 1
HANDSHAKES = 2 + SPREAD_REQUESTS
"""Requests before the canary's: two golden ones, and those that find a router."""


@pytest.fixture
def few(room: Path) -> Path:
    """Give 24 samples of 40 tokens."""
    return write_data(room / "watched.jsonl", [40] * SAMPLES)


def add_noise(states: npt.NDArray[np.uint16], rows: slice, size: float) -> None:
    """Change bfloat16 states of one slot by a part of their size."""
    wide = (states[rows, SLOT].astype(np.uint32) << 16).view(np.float32)
    noise = np.random.default_rng().normal(scale=size, size=wide.shape).astype(np.float32)
    states[rows, SLOT] = (wide * (1 + noise)).view(np.uint32) >> 16


def partial_sum(states: npt.NDArray[np.uint16]) -> None:
    """Hand over what one rank of several has."""
    add_noise(states, slice(None), 0.3)


def other_expert(states: npt.NDArray[np.uint16]) -> None:
    """Route three tokens to another expert."""
    add_noise(states, slice(5, 8), 0.2)


def other_order(states: npt.NDArray[np.uint16]) -> None:
    """Sum up in another order: rounding."""
    add_noise(states, slice(None), 2**-7)


async def watch(server: FakeServer, store: Path, data: Path, **options: Any) -> Outcome:
    """Run against a server that computes requests together."""
    spool = server.spool.directory.path
    outcome = await run_here(store, server.url, spool, data, **options)
    assert {path.name for path in spool.iterdir()} == {
        "server.lock",
        "server.json",
        "heartbeat",
        "free",
    }
    return outcome


def found(store: Path) -> CanaryRecord:
    """Return what the last run recorded."""
    record = Store.open(store).runs()[-1].canary
    assert record is not None
    return record


def count_wrong(store: Path, server: FakeServer) -> int:
    """Count complete samples whose states are not those computed alone."""
    opened = Store.open(store)
    return sum(
        not np.array_equal(
            opened.payload.read(sample), fake_states(opened.input_ids(sample), server.info)
        )
        for sample in np.flatnonzero(opened.completion().complete).tolist()
    )


async def test_a_slot_that_depends_on_the_batch_stops_the_run_before_anything_is_committed(
    store: Path, few: Path
) -> None:
    async with serve_fake(store.parent / "spool", SAMPLES, isolated=False) as server:
        server.batching_seconds, server.batch_fault = 0.02, partial_sum
        outcome = await watch(server, store, few)

    record = found(store)
    assert outcome.code == 3
    assert "computes other states within a batch than alone: slot 1 (layer 3)" in outcome.message
    assert "asked for twice alone, it differs by 0.00%" in outcome.message
    assert "fused all-reduce" in outcome.message
    assert server.requests == []
    assert not Store.open(store).completion().complete.any()
    assert record.verdict == "wrong"
    assert [slot.verdict for slot in record.slots] == ["same", "wrong", "same"]
    assert record.slots[SLOT].samples == len(record.samples) == 3
    assert record.slots[SLOT].median > 0.2 > record.slots[SLOT].threshold
    assert Store.open(store).runs()[-1].result == outcome.message


async def test_single_tokens_that_jump_are_warned_of_and_noted(store: Path, few: Path) -> None:
    async with serve_fake(store.parent / "spool", SAMPLES, isolated=False) as server:
        server.batching_seconds, server.batch_fault = 0.02, other_expert
        outcome = await watch(server, store, few)

    record = found(store)
    assert outcome.code == 0, outcome.message
    assert "canary: slot 1 (layer 3): single tokens differ by up to" in outcome.log
    assert record.verdict == "rows"
    assert record.slots[SLOT].worst > record.slots[SLOT].threshold > record.slots[SLOT].median


async def test_prefixes_that_a_busy_server_does_not_capture_are_skipped(
    store: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.asking, "PAUSES_SECONDS", (0.0,) * 8)
    async with serve_fake(store.parent / "spool", SAMPLES, isolated=False) as server:
        beyond = SAMPLES + extraction.canary.FIRST_RID
        server.always = dict.fromkeys(range(beyond, beyond + 1000), Fault.FULL)
        outcome = await watch(server, store, few)

    assert outcome.code == 0, outcome.message
    assert "was not compared: no dump in 8 attempts, the last time: full: on demand" in outcome.log
    assert "--no-canary" in outcome.log


@pytest.mark.parametrize("fault", [None, other_order])
async def test_a_server_without_fault_is_not_warned_of_and_its_figures_are_kept(
    store: Path, few: Path, fault: Any
) -> None:
    async with serve_fake(store.parent / "spool", SAMPLES, isolated=False) as server:
        server.batching_seconds, server.batch_fault = 0.02, fault
        outcome = await watch(server, store, few, canary_pause_seconds=0)

    record = found(store)
    assert outcome.code == 0, outcome.message
    assert "canary" not in outcome.log
    assert record.verdict == "same"
    assert record.rows == 32
    assert record.checks > 1
    assert (record.slots[SLOT].worst > 0) is (fault is not None)
    assert record.slots[0].worst == 0


async def test_a_fault_that_begins_in_mid_run_stops_it_and_what_it_may_have_spoilt_is_taken_back(
    store: Path, room: Path
) -> None:
    many = write_data(room / "many-watched.jsonl", [40] * 200)
    async with serve_fake(store.parent / "spool", 200, isolated=False) as server:
        server.batching_seconds = 0.02
        run = asyncio.create_task(
            watch(server, store, many, canary_pause_seconds=0, max_in_flight=4)
        )
        await server.wait_for_requests(4)
        server.batch_fault = partial_sum
        outcome = await run

    complete = int(Store.open(store).completion().complete.sum())
    verification = verify_store(store)
    assert outcome.code == 3
    assert "computes other states within a batch than alone" in outcome.message
    assert complete < 150
    assert found(store).verdict == "wrong"
    assert list(store.rglob("*.partial")) == []
    assert "samples committed since the last good check are pending again" in outcome.message
    assert count_wrong(store, server) == 0
    assert verification.bad == ()


async def test_a_server_that_does_not_even_repeat_itself_is_measured_by_its_own_noise(
    store: Path, few: Path
) -> None:
    async with serve_fake(store.parent / "spool", SAMPLES, isolated=False) as server:
        server.noise = lambda states: add_noise(states, slice(None), 0.03)
        server.batch_fault = lambda states: add_noise(states, slice(None), 0.08)
        server.batching_seconds = 0.02
        outcome = await watch(server, store, few)

    slot = found(store).slots[SLOT]
    assert outcome.code == 0, outcome.message
    assert slot.verdict in {"same", "rows"}  # by a single row, at most
    assert slot.floor > 0.03
    assert smallest_threshold("bfloat16", quantised=False) < slot.median < slot.threshold


async def test_one_sample_alone_is_warned_of(store: Path, room: Path) -> None:
    data = write_data(room / "single.jsonl", [40])
    async with serve_fake(store.parent / "spool", 1, isolated=False) as server:
        calls = iter(range(100))

        def third(states: npt.NDArray[np.uint16]) -> None:
            if next(calls) >= 2 + HANDSHAKES:
                partial_sum(states)

        server.noise = third
        outcome = await watch(server, store, data)

    assert outcome.code == 0, outcome.message
    assert "the median token differs by" in outcome.log
    assert found(store).verdict == "one-sample"


async def test_it_can_be_switched_off_which_is_noted(store: Path, few: Path) -> None:
    async with serve_fake(store.parent / "spool", SAMPLES, isolated=False) as server:
        server.batching_seconds, server.batch_fault = 0.02, partial_sum
        outcome = await watch(server, store, few, canary=False)

    assert outcome.code == 0, outcome.message
    assert found(store) == CanaryRecord(verdict="off")
    assert Store.open(store).runs()[-1].options["canary"] is False


async def test_a_server_that_computes_each_request_alone_needs_none(store: Path, few: Path) -> None:
    async with serve_fake(store.parent / "spool", SAMPLES) as server:
        outcome = await watch(server, store, few)

    assert outcome.code == 0, outcome.message
    assert found(store) == CanaryRecord(verdict="isolated")


async def test_without_room_for_it_nothing_is_compared_and_the_run_goes_on(
    store: Path, few: Path
) -> None:
    async with serve_fake(store.parent / "spool", SAMPLES, isolated=False) as server:
        outcome = await watch(server, store, few, spool_budget_bytes=16_000)

    assert outcome.code == 0, outcome.message
    assert found(store).verdict == "not-compared"
    assert "canary: no room" in outcome.log


async def test_a_check_that_the_server_fails_to_answer_does_not_stop_the_run(
    store: Path, few: Path
) -> None:
    async with serve_fake(store.parent / "spool", SAMPLES, isolated=False) as server:
        server.batching_seconds = 0.02
        run = asyncio.create_task(
            watch(server, store, few, canary_pause_seconds=0, max_in_flight=4)
        )
        await server.wait_for_requests(3)
        server.refuse_beyond = True
        outcome = await run

    assert outcome.code == 0, outcome.message
    assert "was not compared: the server answered 400" in outcome.log
    assert found(store).verdict == "same"

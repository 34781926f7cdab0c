"""Servers that go wrong: nothing wrong is ever committed, and everything is said."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import extraction.attempts
from extraction.spool import DUMP_OVERHEAD_BYTES
from hsstore.spec import FailureReason
from hsstore.store import Store
from tests.extraction.fake_model import Fault, fake_states
from tests.extraction.fake_server import FakeServer, serve_fake
from tests.extraction.processes import left_claims
from tests.extraction.running import Outcome, run_here
from tests.extraction.tiny import make_lengths, write_data

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

SAMPLES = 24
PATIENCE_SECONDS = 300
"""Of what would take for ever without what is tested."""
EXPIRES_SECONDS = 3.0
"""Of a request whose dump does not come; one that comes on a busy machine is not given up for that."""
BAD = 7
"""The sample that something goes wrong with."""

BAD_DATA = [
    (Fault.WRONG_TOKENS, FailureReason.BAD_DATA, "the plan has"),
    (Fault.NAN_ROW, FailureReason.NOT_FINITE, "slot 1 holds an infinity or a NaN"),
    (Fault.INFINITY, FailureReason.NOT_FINITE, "slot 2 holds an infinity or a NaN"),
    (Fault.ZERO_ROW, FailureReason.BAD_DATA, "slot 0 is all zeros"),
    (Fault.EQUAL_SLOTS, FailureReason.BAD_DATA, "slots 0 and 2 are equal in every row"),
    (Fault.TRUNCATED, FailureReason.BAD_DATA, "bytes, should be"),
    (Fault.WRONG_DTYPE, FailureReason.BAD_DATA, "dtype is 'float16', expected 'bfloat16'"),
    (Fault.WRONG_SHAPE, FailureReason.BAD_DATA, "states have shape"),
    (Fault.OTHER_STORE, FailureReason.BAD_DATA, "store is 'another'"),
    (Fault.OTHER_CAPTURE, FailureReason.BAD_DATA, "capture hash is '000"),
    (Fault.OTHER_INSTANCE, FailureReason.BAD_DATA, "made by server instance 'another start'"),
    (Fault.ENGINE, FailureReason.BAD_DATA, "engine: on demand"),
    (Fault.ENGINE_THEN_500, FailureReason.BAD_DATA, "engine: out of memory"),
    (Fault.ENGINE_AFTER_500, FailureReason.BAD_DATA, "engine: out of memory"),
    (Fault.BAD_REQUEST, FailureReason.REFUSED, "the server answered 400"),
    (Fault.NO_DUMP, FailureReason.BAD_DATA, "no dump came"),
]
"""Each costs an attempt: what is recorded in the end, and what is said."""

NOT_ITS_FAULT = [Fault.SERVER_ERROR, Fault.RESET, Fault.OVERRUN, Fault.FULL]


@pytest.fixture
def few(room: Path) -> Path:
    """Give 24 samples of 2 to 41 tokens."""
    return write_data(room / "faults.jsonl", [n + 1 for n in make_lengths(SAMPLES, longest=40)])


@pytest.fixture
def fake(room: Path, store: Path) -> Callable[..., Any]:
    """Serve with a spool of its own beside the store, and look at what is left in it."""

    @asynccontextmanager
    async def serving(**changes: Any) -> AsyncIterator[FakeServer]:
        async with serve_fake(store.parent / "spool", SAMPLES, **changes) as server:
            yield server
            names = {path.name for path in server.spool.directory.path.iterdir()}
            assert names == {"server.lock", "server.json", "heartbeat", "free"}
            assert not list((server.spool.directory.path / "free").iterdir())

    return serving


async def run_on(server: FakeServer, store: Path, data: Path | None, **options: Any) -> Outcome:
    """Run against the fake, and check that what is committed is what it computed."""
    options = {"request_timeout_seconds": EXPIRES_SECONDS, "max_failures": 0.5} | options
    outcome = await run_here(store, server.url, server.spool.directory.path, data, **options)
    if store.exists():
        opened = Store.open(store)
        for sample in np.flatnonzero(opened.completion().complete).tolist():
            expected = fake_states(opened.input_ids(sample), server.info)
            np.testing.assert_array_equal(opened.payload.read(sample), expected)
        assert left_claims(store) == []
    return outcome


async def test_a_server_that_goes_wrong_now_and_then_costs_nothing_but_attempts(
    fake: Callable[..., Any], store: Path, few: Path
) -> None:
    async with fake() as server:
        for sample, (fault, _, _) in enumerate(BAD_DATA):
            server.faults[sample] = [fault, fault]

        outcome = await run_on(server, store, few)

        assert outcome.code == 0, outcome.message
        assert [server.attempts(s) for s in range(SAMPLES)] == [3] * 16 + [1] * 8
        assert outcome.status.retries == 32
        assert outcome.status.failed_now == 0


async def test_three_bad_attempts_make_a_sample_fail_with_its_reason(
    fake: Callable[..., Any], store: Path, few: Path
) -> None:
    async with fake() as server:
        server.always = {sample: fault for sample, (fault, _, _) in enumerate(BAD_DATA)}

        outcome = await run_on(server, store, few, max_failures=0.7)

        failed = Store.open(store).completion().failed
        assert outcome.code == 1
        assert "8 samples are in" in outcome.message
        assert "16 failed (1 refused, 13 bad-data, 2 not-finite)" in outcome.message
        assert failed.tolist() == [reason for _, reason, _ in BAD_DATA] + [0] * 8
        for sample, (_, reason, text) in enumerate(BAD_DATA):
            line = next(
                one for one in outcome.log.splitlines() if one.startswith(f"sample {sample} failed")
            )
            assert f"({reason.label})" in line
            assert text in line
            assert server.attempts(sample) == 3


async def test_what_lies_with_the_server_costs_no_attempt(
    fake: Callable[..., Any], store: Path, few: Path
) -> None:
    async with fake() as server:
        for sample, fault in enumerate(NOT_ITS_FAULT):
            server.faults[sample] = [fault] * 4

        outcome = await run_on(server, store, few)

        assert outcome.code == 0, outcome.message
        assert [server.attempts(s) for s in range(SAMPLES)] == [5] * 4 + [1] * 20
        # More, where the server was parked between a sample's placing and its request.
        assert outcome.status.retries >= 16


@pytest.mark.parametrize("fault", [Fault.ABORTED, Fault.ABORTED_IN_CAPTURE])
async def test_a_request_that_somebody_else_aborts_is_asked_for_again_at_once(
    fake: Callable[..., Any], store: Path, few: Path, fault: Fault
) -> None:
    async with fake() as server:
        server.faults[BAD] = [fault] * 5

        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_on(server, store, few, request_timeout_seconds=1000, max_attempts=1)

        assert outcome.code == 0, outcome.message
        assert server.attempts(BAD) == 6
        assert "aborted the request (the server says: Abort in waiting queue)" in outcome.log
        assert "again and again: look for another client" in outcome.log


@pytest.mark.parametrize(
    ("fault", "advice"),
    [(Fault.FULL, "--skip-too-large"), (Fault.OVERRUN, "HSSTORE_STAGING_MB")],
)
async def test_a_server_that_never_has_room_is_refused_with_its_numbers(
    fake: Callable[..., Any],
    store: Path,
    few: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    advice: str,
) -> None:
    monkeypatch.setattr(extraction.attempts, "MAX_PAUSE_SECONDS", 0.05)
    async with fake() as server:
        server.always = dict.fromkeys(range(BAD, SAMPLES), fault)

        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_on(server, store, few)

        assert outcome.code == 3
        assert f"nothing else in flight and an empty spool: {fault.name.lower()}: on demand" in (
            outcome.message
        )
        assert advice in outcome.message
        assert Store.open(store).completion().complete.tolist() == [True] * BAD + [False] * (
            SAMPLES - BAD
        )


async def test_a_sample_that_finds_no_room_alone_is_skipped_if_asked_for(
    fake: Callable[..., Any], store: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction.attempts, "MAX_PAUSE_SECONDS", 0.05)
    async with fake() as server:
        server.always = {BAD: Fault.FULL}

        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_on(server, store, few, skip_too_large=True)

        assert outcome.code == 1
        assert "1 failed (1 too-large)" in outcome.message
        assert server.attempts(BAD) >= 12  # more where dumps of others were in the spool
        assert Store.open(store).completion().complete.sum() == SAMPLES - 1


async def test_a_server_without_room_is_asked_for_less_at_once(
    fake: Callable[..., Any], store: Path, few: Path
) -> None:
    async with fake() as server:
        server.faults |= {sample: [Fault.OVERRUN] for sample in range(4)}
        server.hold = asyncio.Event()

        run = asyncio.create_task(run_on(server, store, few, max_in_flight=16))
        await server.wait_for_requests(16)
        await asyncio.sleep(0.1)
        server.hold.set()
        outcome = await run

        assert outcome.code == 0
        assert server.most_at_once == 16
        assert outcome.status.in_flight_cap < 16


async def test_a_dump_counts_though_the_answer_never_comes(
    fake: Callable[..., Any], store: Path, few: Path
) -> None:
    async with fake() as server:
        server.always = dict.fromkeys(range(SAMPLES), Fault.NO_ANSWER)

        outcome = await run_on(server, store, few, request_timeout_seconds=30)

        assert outcome.code == 0
        assert len(server.requests) == SAMPLES


async def test_a_handshake_is_tried_again_when_the_server_is_busy(
    fake: Callable[..., Any], store: Path, few: Path
) -> None:
    async with fake() as server:
        # SAMPLES is the first index that no sample has.
        server.faults[SAMPLES] = [Fault.SERVER_ERROR, Fault.OVERRUN]

        outcome = await run_on(server, store, few)

        assert outcome.code == 0, outcome.message


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault.NO_DUMP, "without hsstore's plugin, or the spool is that of another server"),
        (Fault.BAD_REQUEST, "the server answered 400"),
        (Fault.WRONG_TOKENS, "the server's dump is wrong: token"),
        (Fault.EQUAL_SLOTS, "slots 0 and 2 are equal"),
        (Fault.WRONG_DTYPE, "dtype"),
        (Fault.WRONG_SHAPE, "states have shape"),
    ],
)
async def test_a_handshake_refuses_a_server_that_is_wrong(
    fake: Callable[..., Any], store: Path, few: Path, fault: Fault, text: str
) -> None:
    async with fake() as server:
        server.always = {SAMPLES: fault}

        outcome = await run_on(server, store, few)

        assert outcome.code == 3
        assert outcome.message.startswith("handshake: ")
        assert text in outcome.message
        assert not store.exists()
        assert server.requests == []


async def test_too_many_failures_stop_the_run_with_the_cause(
    fake: Callable[..., Any], store: Path, few: Path
) -> None:
    async with fake() as server:
        server.always = dict.fromkeys(range(10, SAMPLES), Fault.ZERO_ROW)

        outcome = await run_on(server, store, few, max_failures=0.1, max_in_flight=4)

        completion = Store.open(store).completion()
        assert outcome.code == 1
        assert "4 samples failed" in outcome.message
        assert "allowed are 3 in all" in outcome.message
        assert "slot 0 is all zeros" in outcome.message
        assert "--retry-failed" in outcome.message
        assert completion.complete[:8].all()
        assert 4 <= np.count_nonzero(completion.failed) <= 8
        assert completion.pending.any()
        assert [run.result for run in Store.open(store).runs()] == [outcome.message]


async def test_failures_in_a_row_stop_the_run_though_few_have_failed(
    fake: Callable[..., Any], store: Path, few: Path
) -> None:
    async with fake() as server:
        server.always = dict.fromkeys(range(SAMPLES), Fault.BAD_REQUEST)

        outcome = await run_on(server, store, few, max_failures=1.0, max_failures_in_row=5)

        assert outcome.code == 1
        assert "5 in a row" in outcome.message


async def test_failed_samples_succeed_when_asked_for_again(
    fake: Callable[..., Any], store: Path, few: Path
) -> None:
    async with fake() as server:
        server.always = {BAD: Fault.NAN_ROW}
        first = await run_on(server, store, few)
        server.always = {}
        server.requests.clear()

        outcome = await run_on(server, store, None, retry_failed=True)

        assert first.code == 1
        assert outcome.code == 0, outcome.message
        assert [rid.sample for rid in server.requests] == [BAD]


async def test_a_dump_that_died_with_its_server_is_asked_for_again_once_that_is_back(
    fake: Callable[..., Any], store: Path, few: Path
) -> None:
    async with fake() as server:
        server.always = {BAD: Fault.NO_DUMP}

        run = asyncio.create_task(run_on(server, store, few, request_timeout_seconds=60))
        await server.wait_for_requests(SAMPLES)
        server.always = {}
        server.spool.announce(replace(server.info, instance="another start"))
        async with asyncio.timeout(50):
            outcome = await run

        assert outcome.code == 0, outcome.message
        assert server.attempts(BAD) == 2
        assert "the server that had this request is gone" in outcome.log


@pytest.mark.parametrize("left", [range(SAMPLES), range(5, 20)])
async def test_dumps_of_a_dead_run_that_fill_the_whole_budget_do_not_stop_the_next_run(
    fake: Callable[..., Any], store: Path, few: Path, left: range
) -> None:
    async with fake() as server:
        await run_on(server, store, few)
        opened = Store.open(store)
        for chunk in (store / "complete").glob("c.*"):
            chunk.unlink()
        server.requests.clear()
        server.leave_dumps(opened.spec.store, {s: opened.input_ids(s) for s in left})
        budget = 2 * (42 * 3 * 16 * 2 + DUMP_OVERHEAD_BYTES)

        outcome = await run_on(server, store, None, spool_budget_bytes=budget)

        assert outcome.code == 0, outcome.message
        assert f"{len(left)} are used and 0 were removed" in outcome.log
        assert set(range(SAMPLES)) - set(left) <= {rid.sample for rid in server.requests}
        assert len(server.requests) == len({rid.sample for rid in server.requests})
        assert outcome.status.spool_used_bytes == 0

"""A real server that computes otherwise in a batch than alone: its states are not committed."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hsstore.store import Store
from tests.extraction.running import run_here
from tests.sglang.checks import PATIENCE_SECONDS, check_canary, check_tokens, start_run, verify
from tests.sglang.evidence import check_store_equals_witness
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import SglangServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES, LONGEST = 400, 120
SLOTS = ("slot 0 (layer 0)", "slot 1 (layer 2)", "slot 2 (layer 4)", "slot 3 (the final state)")


@pytest.fixture(scope="module")
def fault(room: Path) -> Path:
    """Name the file that makes the server compute wrongly while it is there."""
    return room / "disturb-batches"


@pytest.fixture(scope="module")
def server(tiny_llama: Path, fault: Path) -> Iterator[SglangServer]:
    """Serve a tiny Llama."""
    with serving(
        tiny_llama,
        *("--layers", "0,2,4"),
        sglang=("--chunked-prefill-size", "64"),
        environment={"HS_DISTURB_BATCHES": str(fault)},
    ) as one:
        yield one


@pytest.fixture(scope="module")
def data(room: Path) -> Path:
    """Give 400 samples of 1 to 120 tokens."""
    return write_samples(room / "watched.jsonl", draw_lengths(SAMPLES, LONGEST))


def committed(store: Path) -> int:
    """Count what is committed; 0 before there is a store."""
    return int(Store.open(store).completion().complete.sum()) if store.exists() else 0


def test_states_that_depend_on_the_batch_stop_the_run_before_anything_is_committed(
    server: SglangServer, fault: Path, new_store: Path, data: Path
) -> None:
    fault.touch()
    ended = start_run(new_store, server, "--data", data).wait(PATIENCE_SECONDS)

    assert ended.code == 3, ended.log
    assert "the server computes other states within a batch than alone" in ended.log
    assert all(slot in ended.log for slot in SLOTS)
    assert "CUDA graphs" in ended.log
    assert committed(new_store) == 0
    (record,) = Store.open(new_store).runs()
    assert record.canary is not None
    assert record.canary.verdict == "wrong"
    assert server.left_in_spool() == []


async def test_states_that_become_wrong_in_mid_run_are_taken_back_and_the_next_run_fills_the_store(
    server: SglangServer, fault: Path, new_store: Path, data: Path
) -> None:
    fault.unlink(missing_ok=True)
    server.clear_witness()
    run = asyncio.create_task(
        run_here(new_store, server.url, server.spool, data, canary_pause_seconds=0)
    )
    while not (run.done() or committed(new_store)):  # noqa: ASYNC110  # a store is polled
        await asyncio.sleep(0.01)
    fault.touch()
    outcome = await run
    fault.unlink()

    assert outcome.code == 3, outcome.log
    assert "within a batch than alone" in outcome.message
    assert "samples committed since the last good check are pending again" in outcome.message
    assert committed(new_store) < SAMPLES
    check_store_equals_witness(Store.open(new_store), server.witness)  # which stayed right
    assert server.left_in_spool() == []

    ended = start_run(new_store, server).wait(PATIENCE_SECONDS)

    assert ended.code == 0, ended.log
    verify(new_store)
    store = Store.open(new_store)
    check_tokens(store, data)
    check_canary(store.runs()[-1])
    assert len(check_store_equals_witness(store, server.witness)) == SAMPLES

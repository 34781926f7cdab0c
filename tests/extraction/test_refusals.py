"""What a run refuses: another model, other data, another owner; the field or the owner is named."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from extraction.spool import ClientInfo, Norm, SpoolClient
from hsstore.store import Store
from tests.extraction.fake_server import serve_fake
from tests.extraction.gate import gated
from tests.extraction.processes import SMALL_STORE, Extraction, left_claims
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extraction.processes import Server


@pytest.fixture
def few(room: Path) -> Path:
    """Give three samples of 5 tokens."""
    return write_data(room / "refused.jsonl", [5, 5, 5])


def make_pending(store: Path) -> None:
    """Take all bits away, as if nothing had been extracted."""
    for chunk in (store / "complete").glob("c.*"):
        chunk.unlink()


@pytest.mark.parametrize(
    ("field", "changes", "text"),
    [
        ("layers", {"layers": (1, 3)}, "layers is (0, 3) in the store and (1, 3) on the server"),
        ("dtype", {"dtype": "float32"}, "dtype is 'bfloat16' in the store and 'float32'"),
        ("final", {"final": "pre-norm"}, "final is 'post-norm' in the store and 'pre-norm'"),
        ("hash", {"capture_hash": "0" * 64}, "capture_hash is 'fff"),
    ],
)
async def test_a_server_with_another_capture_is_refused_by_field(
    store: Path, few: Path, field: str, changes: dict[str, Any], text: str
) -> None:
    spool = store.parent / "spool"
    async with serve_fake(spool, 3) as server:
        await run_here(store, server.url, spool, few)
    make_pending(store)
    async with serve_fake(spool, 3, **changes) as server:
        outcome = await run_here(store, server.url, spool)

        assert outcome.code == 3
        assert text in outcome.message
        assert server.requests == []


async def test_the_norm_of_another_width_is_refused_before_there_is_a_store(
    store: Path, few: Path
) -> None:
    spool = store.parent / "spool"
    norm = Norm("rmsnorm", 1e-6, np.ones(3, "<f4").tobytes())
    async with serve_fake(spool, 3, norm=norm) as server:
        outcome = await run_here(store, server.url, spool, few)

    assert outcome.code == 3
    assert "the final norm has 3 weights, states are 16 wide" in outcome.message
    assert not store.exists()


async def test_other_data_is_refused(server: Server, store: Path, few: Path, room: Path) -> None:
    await run_here(store, server.url, server.spool, few)
    changed = write_data(room / "changed.jsonl", [5, 5, 5], seed=1)

    same = await run_here(store, server.url, server.spool, few)
    outcome = await run_here(store, server.url, server.spool, changed)

    assert same.code == 0
    assert outcome.code == 3
    assert "dataset fingerprint is" in outcome.message
    assert "leave --data away to resume" in outcome.message


async def test_a_store_without_data_to_create_it_is_wrong_input(
    server: Server, store: Path
) -> None:
    outcome = await run_here(store, server.url, server.spool)

    assert outcome.code == 2
    assert "give --data and --model to create it" in outcome.message


async def test_a_spool_of_a_live_other_client_is_refused(
    server: Server, store: Path, few: Path
) -> None:
    with SpoolClient(server.spool, ClientInfo("otherrun", "s")):
        outcome = await run_here(store, server.url, server.spool, few)

    assert outcome.code == 3
    assert "'run': 'otherrun'" in outcome.message
    assert not store.exists()


async def test_a_server_that_wants_a_key_is_told_by_name(store: Path, few: Path) -> None:
    spool = store.parent / "spool"
    async with serve_fake(spool, 3) as server:
        server.key = "secret"
        outcome = await run_here(store, server.url, spool, few)

    assert outcome.code == 3
    assert "set HSSTORE_API_KEY" in outcome.message


async def test_the_key_is_taken_from_the_environment_and_never_said(
    store: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSSTORE_API_KEY", "secret")
    spool = store.parent / "spool"
    async with serve_fake(spool, 3) as server:
        server.key = "secret"
        outcome = await run_here(store, server.url, spool, few)

    assert outcome.code == 0, outcome.message
    assert "secret" not in outcome.log + outcome.message
    assert "secret" not in "".join(run.model_dump_json() for run in Store.open(store).runs())


def test_a_second_run_at_the_same_time_is_refused_with_who_holds_the_store(
    server: Server, store: Path, data: Path
) -> None:
    with gated(server, 61, 10) as gate:
        first = Extraction(store, gate, "--data", data, *SMALL_STORE)
        run = first.wait_for(lambda status: status.phase == "extracting").run
        worker = first.worker()
        server.signal(signal.SIGSTOP)
        gate.open()
        try:
            second = asyncio.run(run_here(store, server.url, server.spool))
        finally:
            server.signal(signal.SIGCONT)
        ended = first.wait()

    assert worker is not None
    assert second.code == 3
    assert f"this store is being written by run {run} (pid {worker.pid} on " in second.message
    assert ended.code == 0, ended.log
    assert left_claims(store) == []


async def test_golden_states_that_differ_are_refused_though_the_hash_is_equal(
    store: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = store.parent / "spool"
    async with serve_fake(spool, 3) as server:
        await run_here(store, server.url, spool, few)
    make_pending(store)
    async with serve_fake(spool, 3) as server:
        server.offset = 0.5

        outcome = await run_here(store, server.url, spool)

        assert outcome.code == 3
        assert "the server computes other states than this store holds: slot" in outcome.message
        assert server.requests == []

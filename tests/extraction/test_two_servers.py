"""Two real servers, of checkpoints of the same shape: they are told apart, and one comes back."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hsstore.errors import RefusedError
from tests.extraction.balancer import balance
from tests.extraction.gate import gated
from tests.extraction.processes import SMALL_STORE, Extraction, extract, verify, wait_until
from tests.extraction.running import run_here
from tests.extraction.test_against import ask
from tests.extraction.test_refusals import make_pending
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extraction.processes import Server

PATIENCE_SECONDS = 110


@pytest.fixture
def few(room: Path) -> Path:
    """Give three samples of 5 tokens."""
    return write_data(room / "told-apart.jsonl", [5, 5, 5])


async def test_another_checkpoint_of_the_same_shape_is_refused(
    server: Server, other_server: Server, store: Path, few: Path
) -> None:
    await run_here(store, server.url, server.spool, few)
    make_pending(store)

    ended = extract(store, other_server)

    assert ended.code == 3, ended.log
    assert "this store was made for another model: capture_hash is" in ended.log


async def test_a_url_and_a_spool_of_two_servers_are_refused_by_the_handshake(
    server: Server, other_server: Server, store: Path, few: Path
) -> None:
    outcome = await run_here(
        store, server.url, other_server.spool, few, request_timeout_seconds=0.5
    )

    assert outcome.code == 3
    assert outcome.message.startswith("handshake: the server answered")
    assert "the spool is that of another server" in outcome.message
    assert not store.exists()
    assert other_server.left_in_spool() == []


async def test_a_balancer_in_front_of_two_real_servers_is_refused(
    server: Server, other_server: Server, store: Path, few: Path
) -> None:
    async with balance(server.url, other_server.url) as url:
        async with asyncio.timeout(PATIENCE_SECONDS):
            outcome = await run_here(store, url, server.spool, few)

    assert outcome.code == 3
    assert "handshake: the server answered" in outcome.message
    assert "a router or load balancer at this URL spreads requests" in " ".join(
        outcome.message.split()
    )
    assert not store.exists()
    assert server.left_in_spool() == []


def test_a_real_server_gives_the_same_again_and_another_checkpoint_is_refused(
    server: Server, other_server: Server, store: Path, data: Path
) -> None:
    ended = extract(store, server, "--data", data, "--limit", "20")
    assert ended.code == 0, ended.log

    report = ask(store, server.url, server.spool, samples=5)

    assert report.ok
    assert report.compared == 5
    assert all(slot.least_cosine > 0.999 for slot in report.slots)
    assert server.left_in_spool() == []
    with pytest.raises(RefusedError, match="capture_hash is"):
        ask(store, other_server.url, other_server.spool)


@pytest.mark.crash
def test_a_server_that_is_killed_and_started_again_costs_only_time(
    other_server: Server, store: Path, data: Path
) -> None:
    server = other_server
    server.clear_spool()
    with gated(server, 61, 20) as gate:
        run = Extraction(store, gate, "--data", data, *SMALL_STORE, "--max-in-flight", "8")
        wait_until(lambda: gate.answered == 20)
        server.kill()
        gate.open()
        server.start().wait()
        ended = run.wait()

    assert ended.code == 0, ended.log
    assert "complete: all 61" in ended.log
    assert "is asked for again: http://127.0.0.1:" in ended.log
    assert "Traceback" not in ended.log
    verify(store, 61)
    assert server.left_in_spool() == []

"""A bug in any stage ends the run, is said once with its cause, and costs nothing committed."""

from __future__ import annotations

import asyncio
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hsstore.store import Store
from hsstore.verify import verify_store
from tests.extraction.fake_server import serve_fake
from tests.extraction.processes import left_claims, verify
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = 60
STAGES = [
    ("extraction.run", "Run._prepare", 1),
    ("extraction.run", "Run._preflight", 1),
    ("hsstore.claims", "Claims.take", 1),
    ("hsstore.claims", "Claims.check", 3),
    ("extraction.pipeline", "Pipeline._open", 2),
    ("extraction.pipeline", "Pipeline._admit", 20),
    ("extraction.pipeline", "Pipeline._new_rid", 20),
    ("extraction.pipeline", "Pipeline._find_fault", 20),
    ("extraction.admission", "Admission._choose", 20),
    ("extraction.holdings", "Holdings.charge", 20),
    ("extraction.server_link", "ServerLink.generate", 20),
    ("extraction.spool_watch", "SpoolWatch._scan", 3),
    ("extraction.spool.client", "SpoolClient.open_dump", 20),
    ("extraction.spool.client", "SpoolClient.give_back", 5),
    ("hsstore.writer", "BlockWriter.append", 20),
    ("hsstore.writer", "BlockWriter.flush", 4),
    ("hsstore.writer", "BlockWriter._encode", 20),
    ("hsstore.shard.writer", "ShardWriter.append", 20),
    ("hsstore.shard.writer", "ShardWriter.seal", 3),
    ("hsstore.shard.writer", "ShardWriter.publish", 3),
    ("hsstore.store", "Store.commit", 3),
    ("hsstore.spans", "Span.write", 6),
    ("hsstore.store", "Store.record_run", 1),
]


class InjectedError(Exception):
    """A bug."""


def break_at_call(monkeypatch: pytest.MonkeyPatch, module: str, name: str, call: int) -> None:
    """Let a method raise at its n-th call and at all later ones, in whatever thread that is."""
    owner: Any = getattr(import_module(module), name.partition(".")[0])
    attribute = name.partition(".")[2]
    original = getattr(owner, attribute)
    calls = 0

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise InjectedError(f"injected into {name}")
        return original(*args, **kwargs)

    async def broken_later(*args: Any, **kwargs: Any) -> Any:
        return await broken(*args, **kwargs)

    is_async = inspect.iscoroutinefunction(original)
    monkeypatch.setattr(owner, attribute, broken_later if is_async else broken)


@pytest.mark.parametrize(("module", "name", "call"), STAGES, ids=[name for _, name, _ in STAGES])
async def test_an_exception_in_a_stage_ends_the_run_with_its_cause_and_loses_nothing(
    room: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, call: int
) -> None:
    data, store, spool = write_data(room / "d.jsonl", [40] * SAMPLES), room / "s.zarr", room / "sp"
    async with serve_fake(spool, SAMPLES) as server:
        with monkeypatch.context() as patch:
            break_at_call(patch, module, name, call)
            async with asyncio.timeout(60):
                outcome = await run_here(store, server.url, spool, data)
        left = [path.name for path in spool.glob("hs-*")]
        committed = 0
        if store.exists():
            report = verify_store(store)
            assert report.ok, report
            committed = report.checked
        again = await run_here(store, server.url, spool, data)

    assert outcome.code == 70, outcome.message
    assert f"InjectedError: injected into {name}" in outcome.message
    assert outcome.message.count("injected") == 1
    assert left == []
    assert outcome.status.complete_now <= committed
    assert again.code == 0, again.message
    assert np.count_nonzero(Store.open(store).completion().complete) == SAMPLES
    assert left_claims(store) == []
    verify(store, SAMPLES)

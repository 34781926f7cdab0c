"""Whole runs against a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from extraction.handshake import SPREAD_REQUESTS
from extraction.spool import DUMP_OVERHEAD_BYTES
from hsstore.spec import FailureReason
from hsstore.store import Store
from hsstore.testing.invariants import check_same_data
from tests.extraction.processes import SMALL_STORE, Nowhere, extract, left_claims, verify
from tests.extraction.running import run_here
from tests.extraction.tiny import ROW_BYTES, write_data

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extraction.processes import Server

SMALL_BUDGET = 300 * ROW_BYTES
"""The sample of 600 tokens, and only that, does not fit."""


def test_a_run_fills_the_store_and_the_next_one_returns_at_once_without_a_server(
    server: Server, store: Path, data: Path
) -> None:
    ended = extract(store, server, "--data", data, *SMALL_STORE)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    again = extract(store, Nowhere())

    assert ended.code == 0, ended.log
    assert f"complete: all 61 samples are in {store}" in ended.log
    assert "Traceback" not in ended.log
    assert "never retrieved" not in ended.log
    assert again.code == 0, again.log
    assert "complete: all 61" in again.log
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    command: list[str | Path] = [sys.executable, "-m", "hsstore", "verify", store]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stdout
    assert "ok: 61 of 61 samples checked" in verified.stdout
    assert server.left_in_spool() == []
    assert left_claims(store) == []
    assert list(store.rglob("*.partial")) == []
    opened = Store.open(store)
    assert opened.layout.blocks >= 8
    assert [(run.result, run.ended is not None) for run in opened.runs()] == [("finished", True)]
    assert opened.input_ids(3).tolist() == _records(data)[3]["input_ids"]


async def test_a_status_counts_what_this_run_did(server: Server, store: Path, data: Path) -> None:
    outcome = await run_here(store, server.url, server.spool, data)

    status, opened = outcome.status, Store.open(store)
    tokens = int(opened.length.sum())
    assert (outcome.code, status.exit_code, status.phase) == (0, 0, "ended")
    assert (status.samples, status.complete, status.complete_now) == (61, 0, 61)
    assert (status.failed, status.failed_now, status.in_flight) == (0, 0, 0)
    assert (status.tokens_now, status.tokens_pending) == (tokens, tokens)
    assert status.bytes_now == status.bytes_committed_now == tokens * ROW_BYTES
    shards = (store / "hidden_states").glob("c.*")
    assert 0 < status.bytes_stored_now < sum(path.stat().st_size for path in shards)
    assert status.spool_used_bytes == 0


async def test_a_dry_run_says_what_is_needed_and_writes_nothing(
    server: Server, store: Path, data: Path
) -> None:
    outcome = await run_here(store, server.url, server.spool, data, dry_run=True)

    assert outcome.code == 0
    assert outcome.message == "dry run: this can work; nothing was written"
    assert re.search(r"61 samples, [\d,]+ tokens: [\d.]+ GB raw", outcome.log)
    assert list(store.parent.iterdir()) == []
    assert server.left_in_spool() == []


async def test_a_spool_much_smaller_than_a_block_suffices(
    server: Server, store: Path, room: Path
) -> None:
    few = write_data(room / "few.jsonl", [100] * 20)
    one_block: dict[str, Any] = {"shard_rows": 1 << 20}
    await run_here(store, server.url, server.spool, few, **one_block)
    assert Store.open(store).layout.blocks == 1
    small = store.with_name("small.zarr")
    budget = 2 * (100 * ROW_BYTES + DUMP_OVERHEAD_BYTES)

    outcome = await run_here(
        small, server.url, server.spool, few, spool_budget_bytes=budget, **one_block
    )

    assert outcome.code == 0, outcome.message
    check_same_data(Store.open(store), Store.open(small))
    assert server.left_in_spool() == []


async def test_a_sample_larger_than_the_budget_is_refused_with_numbers(
    server: Server, store: Path, data: Path
) -> None:
    outcome = await run_here(store, server.url, server.spool, data, spool_budget_bytes=SMALL_BUDGET)

    assert outcome.code == 3
    assert re.search(
        r"1 samples \(the first is sample 30\) need up to 31\d,\d{3} bytes", outcome.message
    )
    assert f"the spool budget is {SMALL_BUDGET:,}" in outcome.message
    assert "--skip-too-large" in outcome.message
    assert list(store.parent.iterdir()) == []


async def test_too_large_samples_are_marked_on_demand_and_retried_on_demand(
    server: Server, store: Path, data: Path
) -> None:
    where = (store, server.url, server.spool)
    skipped = await run_here(
        *where, data, spool_budget_bytes=SMALL_BUDGET, skip_too_large=True, max_failures=0.0
    )
    failed = Store.open(store).completion().failed
    server.settle()  # it counts a forward after its dump
    forwards = server.forwards
    plain = await run_here(*where)
    retried = await run_here(*where, retry_failed=True)
    server.settle()

    assert skipped.code == 1
    assert "60 samples are in" in skipped.message
    assert "1 failed (1 too-large)" in skipped.message
    assert "--retry-failed asks for them again" in skipped.message
    assert np.flatnonzero(failed).tolist() == [30]
    assert failed[30] == FailureReason.TOO_LARGE
    assert (plain.code, plain.message) == (1, skipped.message)
    assert retried.code == 0, retried.message
    assert server.forwards - forwards == 2 + SPREAD_REQUESTS  # the handshake, and the one sample
    assert retried.status.complete_now == 1
    verify(store, 61)


def _records(data: Path) -> list[dict[str, list[int]]]:
    return [json.loads(line) for line in data.read_text().splitlines()]

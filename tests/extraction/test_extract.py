"""A whole run through the real command, against a real server."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np

from hsstore.spec import FailureReason
from hsstore.store import Store
from hsstore.testing.invariants import check_same_data
from tests.extraction.processes import SMALL_STORE, extract, left_claims, verify
from tests.extraction.tiny import ROW_BYTES, write_data

if TYPE_CHECKING:
    from pathlib import Path

    from tests.extraction.processes import Server


def test_a_run_fills_the_store_and_leaves_nothing_else(
    server: Server, store: Path, data: Path
) -> None:
    ended = extract(store, server, "--data", data, *SMALL_STORE)

    assert ended.code == 0, ended.log
    assert f"complete: all 121 samples are in {store}" in ended.log
    assert "Traceback" not in ended.log
    assert "never retrieved" not in ended.log
    assert "121 of 121 samples checked" in verify(store)
    assert server.left_in_spool() == []
    assert left_claims(store) == []
    assert [path.name for path in store.rglob("*.partial")] == []
    opened = Store.open(store)
    assert opened.layout.blocks > 20
    assert [(run.result, run.ended is not None) for run in opened.runs()] == [("finished", True)]
    assert opened.input_ids(3).tolist() == _records(data)[3]["input_ids"]


def test_a_second_run_returns_at_once_without_a_server(
    server: Server, store: Path, data: Path
) -> None:
    extract(store, server, "--data", data, *SMALL_STORE)
    forwards = server.forwards
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}

    again = extract(store, server, "--server", "http://127.0.0.1:1", "--spool", "/nowhere")

    assert again.code == 0, again.log
    assert "complete: all 121" in again.log
    assert server.forwards == forwards
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_a_dry_run_says_what_is_needed_and_writes_nothing(
    server: Server, store: Path, data: Path
) -> None:
    ended = extract(store, server, "--data", data, *SMALL_STORE, "--dry-run")

    assert ended.code == 0, ended.log
    assert "dry run: this can work; nothing was written" in ended.log
    assert re.search(r"121 samples, [\d,]+ tokens", ended.log)
    assert not [path for path in store.parent.iterdir() if path.suffix != ".log"]
    assert server.left_in_spool() == []


def test_a_spool_much_smaller_than_a_block_suffices(
    server: Server, store: Path, data: Path, room: Path
) -> None:
    few = write_data(room / "few.jsonl", [100] * 40)
    extract(store, server, "--data", few)
    assert Store.open(store).layout.blocks == 1
    small = store.with_name("small.zarr")
    budget = 2.5 * (100 * ROW_BYTES + 8192) / 1e9

    ended = extract(small, server, "--data", few, "--spool-budget-gb", f"{budget:.9f}")

    assert ended.code == 0, ended.log
    check_same_data(Store.open(store), Store.open(small))
    assert server.left_in_spool() == []


def test_a_sample_larger_than_the_budget_is_refused_with_numbers_or_skipped(
    server: Server, store: Path, data: Path
) -> None:
    budget = ("--spool-budget-gb", f"{300 * ROW_BYTES / 1e9:.9f}")

    refused = extract(store, server, "--data", data, *SMALL_STORE, *budget)
    existed = store.exists()
    skipped = extract(store, server, "--data", data, *SMALL_STORE, *budget, "--skip-too-large")

    assert refused.code == 3, refused.log
    assert re.search(r"1 samples \(the first is sample 60\) need up to 3\d\d,\d+ bytes", refused.log)
    assert f"the spool budget is {300 * ROW_BYTES:,}" in refused.log
    assert "--skip-too-large" in refused.log
    assert not existed
    assert skipped.code == 1, skipped.log
    assert "120 samples are in" in skipped.log
    assert "1 failed (1 too-large)" in skipped.log
    assert Store.open(store).completion().failed[60] == FailureReason.TOO_LARGE
    assert "1 failed" in verify(store)


def test_failed_samples_are_asked_for_again_only_on_demand(
    server: Server, store: Path, data: Path
) -> None:
    budget = ("--spool-budget-gb", f"{300 * ROW_BYTES / 1e9:.9f}")
    extract(store, server, "--data", data, *SMALL_STORE, *budget, "--skip-too-large")
    forwards = server.forwards

    plain = extract(store, server)
    retried = extract(store, server, "--retry-failed")

    assert plain.code == 1, plain.log
    assert "--retry-failed asks for them again" in plain.log
    assert retried.code == 0, retried.log
    assert server.forwards - forwards == 2  # the handshake, and the one sample
    assert np.all(Store.open(store).completion().complete)
    verify(store)


def _records(data: Path) -> list[dict[str, list[int]]]:
    return [json.loads(line) for line in data.read_text().splitlines()]

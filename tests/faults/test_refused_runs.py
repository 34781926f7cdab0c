"""Runs that must not go on: on a store that another host holds, and without the memory they need."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from extraction.spool import DUMP_OVERHEAD_BYTES
from hsstore.claims import Claim
from hsstore.spec import FailureReason
from hsstore.store import Store
from tests.extraction.fake_model import HIDDEN
from tests.extraction.fake_server import serve_fake
from tests.extraction.processes import Extraction, left_claims, verify
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data
from tests.faults.conftest import ROWS, SAMPLES
from tests.faults.halfway import running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.fake import Fake

DUMP_BYTES = ROWS * (3 * HIDDEN * 2 + 4) + DUMP_OVERHEAD_BYTES
"""Of one sample."""


def test_a_stale_claim_of_another_host_is_taken_over_only_on_demand(
    server: Fake, room: Path, data: Path
) -> None:
    """Of this host it is taken over by itself: so does every other test that kills a run."""
    store = room / "s.zarr"
    with running(store, server, room, "--data", data) as run:
        run.kill()
    server.release()
    for path in (store.with_name("s.zarr.runs") / "claims").glob("[0-9]"):
        claim = Claim.model_validate_json(path.read_text())
        path.write_text(claim.model_copy(update={"host": "elsewhere"}).model_dump_json())

    refused = Extraction(store, server, log=room / "refused").wait()
    before = np.count_nonzero(Store.open(store).completion().complete)
    for lock in (store.with_name("s.zarr.runs") / "claims").glob("*.lock"):
        os.utime(lock, (0, 0))  # silent for long: else the next run would wait for that
    taken = Extraction(store, server, "--take-over", log=room / "taken").wait()

    assert refused.code == 3, refused.log
    assert " on elsewhere, since " in refused.log
    assert "if you are sure that it is dead, run again with --take-over" in refused.log
    assert 0 < before < SAMPLES
    assert taken.code == 0, taken.log
    assert left_claims(store) == []
    verify(store, SAMPLES)


async def test_a_sample_larger_than_the_memory_is_refused_with_numbers_or_skipped_on_demand(
    room: Path,
) -> None:
    store, data = room / "s.zarr", write_data(room / "d.jsonl", [ROWS] * 20 + [2 * ROWS])
    async with serve_fake(room / "spool", 21) as server:
        where = (store, server.url, room / "spool", data)
        refused = await run_here(*where, memory_bytes=DUMP_BYTES)
        existed = store.exists()
        skipped = await run_here(*where, memory_bytes=DUMP_BYTES, skip_too_large=True)
        failed = Store.open(store).completion().failed
        again = await run_here(*where[:3], retry_failed=True)

    assert refused.code == 3, refused.message
    assert f"and the memory budget {DUMP_BYTES:,}" in refused.message, refused.message
    assert not existed
    assert skipped.code == 1, skipped.message
    assert failed.tolist() == [FailureReason.NONE] * 20 + [FailureReason.TOO_LARGE]
    assert again.code == 0, again.message
    verify(store, 21)


async def test_memory_for_one_sample_at_a_time_is_enough(room: Path, data: Path) -> None:
    store = room / "s.zarr"
    async with serve_fake(room / "spool", SAMPLES) as server:
        outcome = await run_here(store, server.url, room / "spool", data, memory_bytes=DUMP_BYTES)

    assert outcome.code == 0, outcome.message
    verify(store, SAMPLES)

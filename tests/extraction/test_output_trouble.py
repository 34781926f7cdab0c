"""Output file systems that are full or turn read-only: said, survived, and continued."""
# ruff: noqa: ASYNC240  # looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hsstore.store import Store
from hsstore.verify import verify_store
from tests.extraction.fake_model import HIDDEN
from tests.extraction.fake_server import serve_fake
from tests.extraction.mounts import MIB, fill, read_only, resize, small_tmpfs
from tests.extraction.processes import left_claims, verify
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW_BYTES = 3 * HIDDEN * 2
PATIENT: dict[str, Any] = {"request_timeout_seconds": 60, "max_in_flight": 4}


@pytest.fixture
def disk() -> Iterator[Path]:
    """Give a file system of 8 MiB."""
    with small_tmpfs(8 * MIB) as path:
        yield path


@pytest.mark.parametrize("blocks_of_rows", [512, 1 << 14])
async def test_a_full_output_ends_the_run_with_74_and_more_room_lets_it_go_on(
    disk: Path, store: Path, room: Path, blocks_of_rows: int
) -> None:
    data = write_data(room / "full.jsonl", [400] * 24)
    output = disk / "store.zarr"
    layout = {"shard_rows": blocks_of_rows}
    async with serve_fake(store.parent / "spool", 24) as server:
        spool = server.spool.directory.path
        server.hold = asyncio.Event()
        run = asyncio.create_task(run_here(output, server.url, spool, data, **layout, **PATIENT))
        await server.wait_for_requests(4)
        fill(disk, 10 * 400 * ROW_BYTES)
        server.hold.set()
        async with asyncio.timeout(50):
            full = await run
        left = [*output.rglob("*.partial")]
        committed = verify_store(output)
        resize(disk, 64 * MIB)
        again = await run_here(output, server.url, spool, data, **layout, **PATIENT)

    assert full.code == 74, full.message
    assert f"cannot write {output}/" in full.message
    assert "No space left on device (0.00 GB free of 0.01 GB); free space there" in full.message
    assert "run the same command again" in full.message
    assert left == []
    assert committed.ok, committed
    assert again.code == 0, again.message
    assert again.status.complete == committed.checked < 24
    verify(output, 24)
    assert left_claims(output) == []


async def test_however_little_room_there_is_it_is_an_output_error_and_the_rest_comes_later(
    disk: Path, store: Path, room: Path
) -> None:
    data = write_data(room / "little.jsonl", [5] * 6)
    output = disk / "store.zarr"
    codes = []
    async with serve_fake(store.parent / "spool", 6) as server:
        for free in range(70_000, 400_000, 28_672):  # a page of status, and then some
            filler = fill(disk, free)
            outcome = await run_here(output, server.url, server.spool.directory.path, data)
            codes.append(outcome.code)
            assert outcome.code in {0, 74}, outcome.message
            assert outcome.code == 0 or "free space there" in outcome.message
            filler.unlink()
            if outcome.code == 0:
                break

    assert codes[0] == 74
    assert codes[-1] == 0
    verify(output, 6)
    assert sorted(path.name for path in disk.iterdir()) == ["store.zarr", "store.zarr.runs"]


async def test_an_output_that_turns_read_only_is_said_though_the_claims_cannot_be_given_back(
    store: Path, data: Path
) -> None:
    async with serve_fake(store.parent / "spool", 61) as server:
        spool = server.spool.directory.path
        server.hold, server.held = asyncio.Event(), set(range(20, 61))
        run = asyncio.create_task(run_here(store, server.url, spool, data, **PATIENT))
        await server.wait_for_requests(20)
        with read_only(store), read_only(store.with_name("store.zarr.runs")):
            server.hold.set()
            async with asyncio.timeout(50):
                outcome = await run
            claims = left_claims(store)
        committed = np.count_nonzero(Store.open(store).completion().complete)
        again = await run_here(store, server.url, spool)

    assert outcome.code == 74, outcome.message
    assert "remount it writable, then run the same command again" in outcome.message
    assert claims
    assert again.code == 0, again.message
    assert again.status.complete == committed < 61
    assert left_claims(store) == []
    verify(store, 61)

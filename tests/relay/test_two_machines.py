"""`hsstore extract` in one network namespace, server and relay in another, and the line between them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extraction.spool import SpoolView
from hsstore.store import Store
from tests.extraction.fake_server import serve_fake
from tests.extraction.processes import SMALL_STORE, Extraction, verify, wait_until
from tests.extraction.running import run_here
from tests.extraction.tiny import make_lengths, write_data
from tests.relay.given import TOKEN
from tests.relay.namespaces import Cable, connected, serving_there

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.fake import Fake

SAMPLES = 60


@pytest.fixture
def cable() -> Iterator[Cable]:
    """Have a line between two namespaces."""
    with connected() as line:
        yield line


@pytest.fixture
def data(room: Path) -> Path:
    """Give samples of 101 to 400 tokens: dumps of up to 40 KB."""
    lengths = [100 + n for n in make_lengths(SAMPLES, longest=300)]
    return write_data(room / "data.jsonl", lengths)


def settle(fake: Fake) -> None:
    """Wait until what was under way has ended, on the line too."""
    last = None
    while (now := (fake.server.at_once, len(fake.server.requests))) != last or now[0]:
        last = now
        time.sleep(0.5)


class FarExtraction(Extraction):
    """`hsstore extract` in the near namespace, with a relay for a spool."""

    def __init__(
        self, cable: Cable, store: Path, server: str, relay: str, *more: str | Path
    ) -> None:
        self._log = store.with_name(f"{store.name}.{time.monotonic_ns()}.log")
        self._page = None
        self._began = time.monotonic()
        command: list[str | Path] = [
            "ip",
            "netns",
            "exec",
            cable.here,
            sys.executable,
            "-m",
            "hsstore",
        ]
        command += ["extract", store, "--server", f"{server}={relay}", "--spool", mirror_of(store)]
        with self._log.open("w") as file:
            self.process = subprocess.Popen(
                [*command, *more],
                stdout=file,
                stderr=file,
                env=os.environ | {"HSSTORE_RELAY_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )


def mirror_of(store: Path) -> Path:
    """Name the place for the mirrored spool."""
    return store.with_name("mirror")


def digests(store: Path) -> list[int]:
    """Return the digests of all samples."""
    found: list[int] = Store.open(store).completion().digest.tolist()
    return found


def test_a_run_over_a_slow_line_that_is_cut_gives_the_same_store_as_one_beside_the_server(
    cable: Cable, room: Path, data: Path
) -> None:
    store = room / "far.zarr"
    cable.slow_down("2mbit")
    with serving_there(cable, room / "there" / "spool", SAMPLES) as (fake, relay):
        run = FarExtraction(cable, store, fake.url, relay, "--data", data, *SMALL_STORE)
        try:
            fake.wait_for_requests(SAMPLES // 2)
            cable.cut()
            wait_until(lambda: f"relay {relay} has not answered for" in run.log(), 90)
            assert run.process.poll() is None, run.log()
            cable.slow_down("100mbit")
            cable.mend()
            ended = run.wait()
        finally:
            run.kill()
        assert not list((room / "there" / "spool").glob("hs-*"))
        assert fake.server.requests
    assert ended.code == 0, ended.log
    assert "answers again" in ended.log
    assert TOKEN not in ended.log
    assert not mirror_of(store).exists()
    verify(store, SAMPLES)
    assert digests(store) == digests_of_a_local_run(room, data)


def digests_of_a_local_run(room: Path, data: Path) -> list[int]:
    """Extract beside a server of the same model."""

    async def run() -> None:
        async with serve_fake(room / "beside" / "spool", SAMPLES) as server:
            spool = server.spool.directory.path
            outcome = await run_here(room / "near.zarr", server.url, spool, data)
            assert outcome.code == 0, outcome.log

    asyncio.run(run())
    return digests(room / "near.zarr")


def test_a_dump_stays_at_the_server_until_its_commit_also_when_the_client_is_killed(
    cable: Cable, room: Path, data: Path
) -> None:
    store, spool = room / "far.zarr", room / "there" / "spool"
    one_block = ["--span-samples", str(SAMPLES), "--shard-rows", "100000"]
    with serving_there(cable, spool, SAMPLES) as (fake, relay):
        fake.server.held = {SAMPLES - 1}  # so that the block stays open
        fake.hold()
        first = FarExtraction(cable, store, fake.url, relay, "--data", data, *one_block)
        try:
            first.wait_for(lambda status: status.tokens_now > 5_000)
        finally:
            first.kill()
        settle(fake)
        complete = set(np.flatnonzero(Store.open(store).completion().complete).tolist())
        kept = set(SpoolView(spool).scan().finished)
        captured = {rid.sample for rid in fake.server.captured} & set(range(SAMPLES))
        asked = len(fake.server.requests)
        fake.release()
        ended = FarExtraction(cable, store, fake.url, relay).wait()
        again = len(fake.server.requests) - asked
        left = list(spool.glob("hs-*"))
    waiting = {rid.sample for rid in kept} - complete
    assert waiting
    assert captured == waiting | complete  # none is lost
    assert ended.code == 0, ended.log
    assert f"of a dead run's dumps, {len(waiting)} are used" in ended.log
    assert again == SAMPLES - len(complete) - len(waiting)
    assert not left
    verify(store, SAMPLES)

"""Commits and appends of one block that overlap, and that go wrong."""
# looking at a store in shared memory blocks nothing

from __future__ import annotations

import asyncio
import os
import threading
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import extraction.block_order
import extraction.pipeline
from extraction import withdrawal
from extraction.block_sink import BlockSink, OpenBlock
from extraction.error_group import first_of
from extraction.spool import ClientInfo, RequestId, SpoolClient, SpoolServer
from hsstore.claims import Claims
from hsstore.create import LayoutOptions
from hsstore.errors import HsstoreError, InterruptedRunError, OutputError, RefusedError
from hsstore.spec import FailureReason
from hsstore.store import Store
from hsstore.testing.invariants import complete_samples
from hsstore.testing.stores import commit_block, make_store
from tests.extraction.fake_model import fake_info, fake_states
from tests.extraction.fake_server import serve_fake
from tests.extraction.mounts import MIB, fill, small_tmpfs
from tests.extraction.processes import verify, wait_until
from tests.extraction.running import run_here
from tests.extraction.tiny import write_data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from extraction.spool import Dump

SLOW_SECONDS = 0.01
LIMITS = {
    "MIN_OPEN_BLOCKS": extraction.block_order,
    "MAX_OPEN_BLOCKS": extraction.block_order,
    "STRAGGLER_SECONDS": extraction.pipeline,
}
"""Where each limit lives."""


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every fsync take its time, as on a disk."""
    fsync = os.fsync

    def slowly(descriptor: int) -> None:
        time.sleep(SLOW_SECONDS)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slowly)


class Bench:
    """A store, a sink, and dumps for it."""

    def __init__(self, store: Store, spool: Path) -> None:
        self.store = store
        self.server = SpoolServer(spool)
        self.server.announce(fake_info(self.server, ""))
        self.client = SpoolClient(spool, ClientInfo("run", store.spec.store))
        self.claims = Claims(store, "run")
        self.claims.take([0])
        self.sink = BlockSink(store, self.claims, "run", 2)
        self.block = self.open(0)

    def open(self, index: int) -> OpenBlock:
        """Open a block, of which nothing has come."""
        block = self.store.layout.block(index)
        tokens = {sample: self.store.input_ids(sample) for sample in block.samples}
        return OpenBlock(block, tokens, set(block.samples))

    def dump(self, sample: int) -> Dump:
        """Have a sample captured."""
        ids = self.store.input_ids(sample)
        rid = RequestId("run", sample, 0, len(ids))
        info = self.server._info
        assert info is not None
        self.server.put(str(rid), 0, fake_states(ids, info), ids)
        return self.client.open_dump(rid)

    def close(self) -> None:
        """End all that runs."""
        self.sink.close()
        self.claims.release()
        self.client.cleanup("run")
        self.client.close()
        self.server.close()


@pytest.fixture
def disk() -> Iterator[Path]:
    """Give a file system of 4 MiB."""
    with small_tmpfs(4 * MIB) as path:
        yield path


@pytest.fixture
def bench(disk: Path, store: Path) -> Iterator[Bench]:
    """Give a bench whose store is on a small file system: one block of four samples."""
    options = LayoutOptions(chunk_rows=16, shard_rows=2048)
    opened = make_store(disk / "store.zarr", [400] * 4, options=options)
    assert opened.layout.block(0).samples == range(4)
    bench = Bench(opened, store.parent / "spool")
    yield bench
    bench.close()


async def test_two_that_wait_for_a_commit_start_no_two_commits_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on, fsync = threading.Event(), threading.Event(), os.fsync

    def stuck(descriptor: int) -> None:
        began.set()
        assert goes_on.wait(60)
        fsync(descriptor)

    sink, block = bench.sink, bench.block
    await sink.append(block, 0, bench.dump(0))
    monkeypatch.setattr(os, "fsync", stuck)
    waiters = [asyncio.create_task(sink.commit(block)) for _ in range(3)]
    assert await asyncio.to_thread(began.wait, 60)

    block.failed[1] = FailureReason.REFUSED
    late = asyncio.create_task(sink.append(block, 2, bench.dump(2)))
    await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(late, *waiters)

    completion = bench.store.completion()
    assert completion.complete.tolist() == [True, False, True, False]
    assert completion.failed.tolist() == [0, FailureReason.REFUSED, 0, 0]
    assert (sink.committed, block.failed, block.appended) == (2, {}, set())
    assert block.committing is None
    for sample in (0, 2):
        expected = fake_states(bench.store.input_ids(sample), bench.server._info)  # type: ignore[arg-type]
        np.testing.assert_array_equal(bench.store.payload.read(sample), expected)


async def test_a_commit_that_waits_for_the_disk_holds_up_no_other_block(
    disk: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, fsync = threading.Event(), os.fsync

    def stuck(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith("c.0.0.0"):
            assert goes_on.wait(60)
        fsync(descriptor)

    lengths, options = [400] * 10, LayoutOptions(chunk_rows=16, shard_rows=2048)
    bench = Bench(make_store(disk / "store.zarr", lengths, options=options), store.parent / "spool")
    monkeypatch.setattr(os, "fsync", stuck)
    sink, second = bench.sink, bench.open(1)
    try:
        await sink.append(bench.block, 0, bench.dump(0))
        commits = [asyncio.create_task(sink.commit(bench.block))]
        for sample in second.block.samples:
            await sink.append(second, sample, bench.dump(sample))
        commits.append(asyncio.create_task(sink.commit(second)))
        late = asyncio.create_task(sink.append(bench.block, 1, bench.dump(1)))
        await asyncio.sleep(0.05)
        before = (bool(bench.store.completion().complete.any()), late.done())
        goes_on.set()
        await asyncio.gather(*commits, late)
        await sink.commit(bench.block)
    finally:
        goes_on.set()
        bench.close()

    assert before == (False, False)
    committed = [0, 1, *second.block.samples]
    assert np.flatnonzero(bench.store.completion().complete).tolist() == committed
    for sample in committed:
        expected = fake_states(bench.store.input_ids(sample), bench.server._info)  # type: ignore[arg-type]
        np.testing.assert_array_equal(bench.store.payload.read(sample), expected)


async def test_a_write_error_discards_the_block_and_what_was_in_it_stays_pending(
    bench: Bench, disk: Path
) -> None:
    sink, block = bench.sink, bench.block
    await sink.append(block, 0, bench.dump(0))
    late = bench.dump(1)
    filler = fill(disk, 0)

    with pytest.raises(OutputError):
        await sink.append(block, 1, late)
    async with asyncio.timeout(60):
        await sink.commit(block)
    left = list(bench.store.path.rglob("*.partial"))
    filler.unlink()
    await sink.append(block, 3, bench.dump(3))
    await sink.commit(block)

    assert left == []
    assert bench.store.completion().complete.tolist() == [False, False, False, True]
    assert sink.committed == 1


async def test_a_commit_that_is_refused_is_refused_to_everybody_and_leaves_nothing(
    bench: Bench,
) -> None:
    sink, block = bench.sink, bench.block
    await sink.append(block, 0, bench.dump(0))
    claim = bench.store.runs_path / "claims" / "0"
    claim.write_text(claim.read_text().replace('"run":"run"', '"run":"thief"'))

    async with asyncio.timeout(60):
        waiters = [asyncio.create_task(sink.commit(block)) for _ in range(2)]
        results = await asyncio.gather(*waiters, return_exceptions=True)
        with pytest.raises(RefusedError, match="taken over by run thief"):
            await sink.commit(block)

    assert [type(result) for result in results] == [RefusedError, RefusedError]
    assert block.appended == set()
    assert sink.committed == 0
    assert not bench.store.completion().complete.any()
    assert list(bench.store.path.rglob("c.*.partial")) == []
    assert list((bench.store.path / "hidden_states").glob("c.*")) == []


async def test_a_straggler_does_not_keep_its_block_open_and_reopens_it_when_it_comes(
    store: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MIN_OPEN_BLOCKS", 1), ("MAX_OPEN_BLOCKS", 1), ("STRAGGLER_SECONDS", 0.5)):
        monkeypatch.setattr(LIMITS[name], name, value)
    data = write_data(room / "stragglers.jsonl", [40] * 30)
    options: dict[str, Any] = {
        "shard_rows": 512,
        "request_timeout_seconds": 60,
        "server_wait_seconds": 1,
    }
    async with serve_fake(store.parent / "spool", 30) as server:
        server.hold, server.held = asyncio.Event(), {0, 11}
        run = asyncio.create_task(
            run_here(store, server.url, server.spool.directory.path, data, **options)
        )
        await server.wait_for_requests(30)
        opened = Store.open(store)
        await asyncio.to_thread(wait_until, lambda: opened.completion().complete.sum() == 28)
        before = {s: opened.payload.read(s) for s in range(30) if s not in server.held}
        server.hold.set()
        async with asyncio.timeout(60):
            outcome = await run

    assert opened.layout.blocks > 3
    assert outcome.code == 0, outcome.message
    assert outcome.status.complete_now == 30
    assert outcome.status.bytes_committed_now == outcome.status.bytes_now
    for sample, bits in before.items():
        np.testing.assert_array_equal(Store.open(store).payload.read(sample), bits)
    verify(store, 30)


async def test_many_stragglers_on_a_slow_disk_are_committed_once_each(
    store: Path, room: Path, monkeypatch: pytest.MonkeyPatch, slow_disk: None
) -> None:
    for name, value in (("MAX_OPEN_BLOCKS", 2), ("STRAGGLER_SECONDS", 0.01)):
        monkeypatch.setattr(LIMITS[name], name, value)
    monkeypatch.setattr(extraction.block_order, "MIN_OPEN_BLOCKS", 1)
    data = write_data(room / "many.jsonl", [10] * 40)
    options: dict[str, Any] = {"shard_rows": 128, "max_in_flight": 2}
    async with serve_fake(store.parent / "spool", 40) as server:
        async with asyncio.timeout(60):
            outcome = await run_here(
                store, server.url, server.spool.directory.path, data, **options
            )

    assert outcome.code == 0, outcome.message
    assert outcome.status.complete_now == 40
    verify(store, 40)


def test_an_output_error_is_told_before_what_followed_from_it() -> None:
    full, gone = OutputError("disk full"), InterruptedRunError("server gone")
    group = BaseExceptionGroup(
        "",
        [
            asyncio.CancelledError(),
            KeyError("follows"),
            BaseExceptionGroup("", [ValueError("follows too"), full]),
            gone,
        ],
    )

    assert first_of(group, OutputError, HsstoreError) is full
    assert first_of(BaseExceptionGroup("", [gone, full]), OutputError, HsstoreError) is full
    assert isinstance(first_of(BaseExceptionGroup("", [KeyError("a bug")]), OutputError), KeyError)


async def test_what_another_worker_holds_is_named_and_all_else_is_withdrawn(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(withdrawal, "TAKE_SECONDS", 0.0)
    opened = make_store(store, [4] * 20)
    for block in range(opened.layout.blocks):
        commit_block(opened, block, opened.layout.block(block).samples)
    samples = array("q", complete_samples(opened))
    span_0 = [sample for sample in samples if sample < opened.spec.layout.span_samples]
    with (
        Claims(opened, "other", worker="1/2") as others,
        Claims(opened, "me", worker="0/2") as mine,
    ):
        others.take_place()
        mine.take_place()
        assert others.try_to_take(0)
        sink = BlockSink(opened, mine, "me", 1)
        left = await sink.withdraw(samples)
        sink.close()

    assert left == span_0
    assert complete_samples(opened) == set(span_0)

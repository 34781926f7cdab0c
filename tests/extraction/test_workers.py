"""Several workers on one store: killed, restarted as other ones, they make the store of a single run."""
# ruff: noqa: ASYNC240, ASYNC110, ASYNC220  # what is waited for has no event; nothing blocks

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

import extraction.peers
import extraction.shared_work
import hsstore.cli  # noqa: F401  # registers the commands
from extraction.options import ExtractOptions
from extraction.shared_work import SharedWork
from extraction.status import RunStatus, StatusPage
from hsstore import liveness
from hsstore.claims import Claims
from hsstore.cli.app import app
from hsstore.create import LayoutOptions
from hsstore.errors import RefusedError
from hsstore.store import Store
from hsstore.testing.invariants import check_same_data
from hsstore.testing.stores import SMALL_LAYOUT, commit_block, make_store
from tests.extraction.fake_model import Fault
from tests.extraction.fake_server import FakeServer, serve_fake
from tests.extraction.forks import Fork, Forks, forks
from tests.extraction.processes import left_claims, verify
from tests.extraction.running import run_here
from tests.extraction.tiny import make_lengths, write_data

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

SAMPLES = 90
SMALL_SPANS = {"span_samples": 6, "shard_rows": 256}
SLOTS = 3
KILLS = 8
PATIENCE_SECONDS = 240
WAITS = "waiting for other workers"

_ELSEWHERE = """
import asyncio, os, signal, socket, subprocess, sys
from pathlib import Path
from tests.extraction.fake_server import serve_fake
from tests.extraction.running import run_here

async def main(store, spool, data, samples):
    async with serve_fake(spool, samples) as server:
        server.hold = asyncio.Event()
        options = {"worker": (0, 2), "max_in_flight": 4, "span_samples": 6, "shard_rows": 256}
        run = asyncio.create_task(run_here(store, server.url, spool, data, **options))
        await server.wait_for_requests(4)
        print("holds", flush=True)
        await run

socket.sethostname("elsewhere")
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
asyncio.run(main(*map(Path, sys.argv[1:4]), int(sys.argv[4])))
"""
"""Worker 0 of 2 in namespaces of its own: it creates the store, and gets no answer for its samples."""


@pytest.fixture(scope="module")
def starter(room: Path) -> Iterator[Forks]:
    """Give a process that starts runs."""
    with forks(room) as found:
        yield found


@pytest.fixture
def data(room: Path) -> Path:
    """Give 90 samples of 1 to 40 tokens."""
    return write_data(room / "workers.jsonl", make_lengths(SAMPLES, longest=40))


@dataclass(frozen=True, slots=True)
class _Place:
    """A server and where its spool is."""

    fake: FakeServer
    spool: Path

    @property
    def url(self) -> str:
        return self.fake.url


@asynccontextmanager
async def serving(store: Path, count: int) -> AsyncIterator[list[_Place]]:
    """Serve with spools beside the store."""
    async with AsyncExitStack() as stack:
        spools = [store.with_name(f"spool{n}") for n in range(count)]
        servers = [await stack.enter_async_context(serve_fake(s, SAMPLES)) for s in spools]
        for server in servers:
            server.batching_seconds = 0.02
        yield [_Place(server, spool) for server, spool in zip(servers, spools, strict=True)]


async def all_have_asked(places: Sequence[_Place]) -> None:
    """Give no answer before each server was asked for a sample."""
    hold = asyncio.Event()
    for place in places:
        place.fake.hold = hold
    for place in places:
        await place.fake.wait_for_requests(1)
    hold.set()


async def ending(run: Fork) -> tuple[int, str]:
    """Wait for the end of a run."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while run.alive:
            await asyncio.sleep(0.02)
    return run.ended()


async def test_workers_that_are_killed_and_come_back_as_others_make_the_store_of_a_single_run(
    starter: Forks, store: Path, data: Path
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    alone = store.with_name("alone.zarr")
    async with serving(store, SLOTS) as places:
        await run_here(alone, places[0].url, places[0].spool, data, **SMALL_SPANS)
        runs: dict[int, tuple[Fork, tuple[int, int]]] = {}

        def start(slot: int) -> None:
            taken = {number for other, (_, number) in runs.items() if other != slot}
            numbers = {(i, n) for n in range(1, 5) for i in range(n)} - taken
            number = chance.choice(sorted(numbers))
            options = SMALL_SPANS | {"worker": number, "max_in_flight": 4}
            runs[slot] = (starter.start(store, places[slot], data, **options), number)

        for slot in range(SLOTS):
            start(slot)
        for _ in range(KILLS):
            asked = sum(len(place.fake.requests) for place in places)
            enough = asked + chance.randint(0, 12)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while any(run.alive for run, _ in runs.values()):
                    if sum(len(place.fake.requests) for place in places) >= enough:
                        break
                    await asyncio.sleep(0.005)
            slot = chance.randrange(SLOTS)
            await asyncio.to_thread(runs[slot][0].kill)
            start(slot)
        ends = [await ending(run) for run, _ in runs.values()]

    logs = "\n".join(f"worker {number}: {run.log.read_text()}" for run, number in runs.values())
    assert ends == [(0, f"complete: all {SAMPLES} samples are in {store}")] * SLOTS, (seed, logs)
    check_same_data(Store.open(alone), Store.open(store))
    verify(store, SAMPLES)
    assert left_claims(store) == []
    assert list(store.rglob("*.partial")) == []


async def test_workers_that_start_together_create_one_store_and_share_its_samples(
    starter: Forks, store: Path, data: Path
) -> None:
    async with serving(store, SLOTS) as places:
        options = SMALL_SPANS | {"max_in_flight": 4}
        runs = [
            starter.start(store, place, data, worker=(n, SLOTS), **options)
            for n, place in enumerate(places)
        ]
        await all_have_asked(places)
        ends = [await ending(run) for run in runs]
        asked = [{rid.sample for rid in place.fake.requests} for place in places]
        left = [path.name for place in places for path in place.spool.glob("hs-*")]

    assert ends == [(0, f"complete: all {SAMPLES} samples are in {store}")] * SLOTS
    assert sum(map(len, asked)) == SAMPLES  # nothing is asked of two
    assert len(set.union(*asked)) == SAMPLES
    assert all(asked)
    assert [path.name for path in store.parent.glob(".*building")] == []
    records = Store.open(store).runs()
    assert sorted(record.options["worker"] for record in records) == [[n, 3] for n in range(3)]
    assert (left_claims(store), left) == ([], [])
    verify(store, SAMPLES)


async def test_the_same_worker_and_a_run_that_wants_the_whole_store_are_refused_beside_a_worker(
    starter: Forks, store: Path, data: Path
) -> None:
    async with serving(store, 2) as (busy, free):
        busy.fake.hold = asyncio.Event()
        options = SMALL_SPANS | {"worker": (0, 2), "max_in_flight": 4}
        first = starter.start(store, busy, data, **options)
        await busy.fake.wait_for_requests(1)
        again = await run_here(store, free.url, free.spool, worker=(0, 2))
        whole = await run_here(store, free.url, free.spool)
        other = asyncio.create_task(run_here(store, free.url, free.spool, worker=(2, 3)))
        await free.fake.wait_for_requests(40)  # the others' too
        busy.fake.hold.set()
        ends = (await other).code, (await ending(first))[0]

    assert again.code == 3
    assert "worker 0/2 is there already: this store is being written by worker 0/2, run " in (
        again.message
    )
    assert f"(pid {first.pid} on " in again.message
    assert whole.code == 3
    assert "start this run with --worker too" in whole.message
    assert ends == (0, 0)
    assert left_claims(store) == []


async def test_failed_samples_are_tried_again_by_the_worker_whose_they_are_and_once(
    starter: Forks, store: Path, data: Path
) -> None:
    async with serving(store, 2) as (one, two):
        for place in (one, two):
            place.fake.always = dict.fromkeys((3, 8), Fault.BAD_REQUEST)
        before = await run_here(store, one.url, one.spool, data, **SMALL_SPANS)
        for place in (one, two):
            place.fake.always = {3: Fault.BAD_REQUEST}
            place.fake.requests.clear()
        one.fake.hold = two.fake.hold = asyncio.Event()
        runs = []
        for n, place in enumerate((one, two)):
            runs.append(starter.start(store, place, worker=(n, 2), retry_failed=True))
            await place.fake.wait_for_requests(1)
        one.fake.hold.set()
        ends = [await ending(run) for run in runs]
        asked = sorted({rid.sample for place in (one, two) for rid in place.fake.requests})

    assert before.code == 1
    assert [code for code, _ in ends] == [1, 1], ends
    assert ends[0][1] == ends[1][1]
    assert "1 failed (1 refused" in ends[0][1]
    assert asked == [3, 8]
    assert np.flatnonzero(Store.open(store).completion().failed).tolist() == [3]


async def test_a_worker_of_another_host_that_may_be_dead_is_waited_for_and_taken_over_on_demand(
    store: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (extraction.peers, "SAY_SECONDS", 0.2),
        (extraction.peers, "SILENT_SECONDS", 1.0),
        (liveness, "SILENT_SECONDS", 1.0),
        (liveness, "BEAT_SECONDS", 1.0),
        (liveness, "LISTEN_SECONDS", 0.1),
        (extraction.shared_work, "LOOK_AGAIN_SECONDS", 0.1),
    ):
        monkeypatch.setattr(module, name, value)
    command: list[str | Path] = ["unshare", "-n", "-u", sys.executable, "-c", _ELSEWHERE]
    command += [store, store.with_name("far"), data, str(SAMPLES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as far:
        assert far.stdout is not None
        assert far.stdout.readline() == "holds\n"
        far.kill()
    async with serving(store, 1) as [place]:
        where = (store, place.url, place.spool)
        run = asyncio.create_task(run_here(*where, worker=(1, 2), stall_abort_seconds=3))
        first = await waiting_for_others(store.parent)
        # To wait for others is no stall.
        await waiting_for_others(store.parent, beyond=first.progress_count)
        left = await run
        asked = {rid.sample for rid in place.fake.requests}
        pending = np.flatnonzero(Store.open(store).completion().pending).tolist()
        taken = await run_here(*where, worker=(1, 2), take_over=True)

    assert first.message.startswith("waiting: worker 0/2, run "), first.message
    assert f"{len(pending)} pending samples in " in first.message
    assert " on elsewhere, since " in first.message
    assert "on elsewhere" in left.log
    assert "may be dead. Its last sign of life came " in left.log
    assert left.code == 75, left.message
    assert "if you are sure that it is dead, run again with --take-over" in left.message
    assert f"samples {pending[0]}-" in left.message
    assert asked == set(range(SAMPLES)) - set(pending)
    assert (taken.code, left_claims(store)) == (0, []), taken.message
    verify(store, SAMPLES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2/2", "workers are counted from 0, so the last of 2 is 1/2"),
        ("1", "not of the form i/n, such as 0/2 and 1/2 for two workers"),
        ("-1/2", "not of the form"),
        ("0/0", "not of the form"),
        ("1/2/3", "not of the form"),
        ("a/b", "not of the form"),
        ("", "not of the form"),
    ],
)
def test_a_number_that_is_no_workers_is_wrong_input(store: Path, text: str, said: str) -> None:
    arguments = ["extract", str(store), "--server", "http://127.0.0.1:1", "--worker", text]

    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 2
    assert f"--worker {text}: " in result.stderr
    assert said in result.stderr


@pytest.mark.parametrize(
    "options",
    [LayoutOptions(4, 16, span_samples=3), LayoutOptions(4, 16, span_samples=6, codec="zstd")],
)
def test_who_creates_a_store_that_is_there_with_another_layout_is_refused(
    store: Path, options: LayoutOptions
) -> None:
    first = make_store(store, [3, 4], options=SMALL_LAYOUT)

    again = make_store(store, [3, 4], options=SMALL_LAYOUT)
    with pytest.raises(RefusedError, match="is there already, with another"):
        make_store(store, [3, 4], options=options)

    assert again.spec.store == first.spec.store


async def waiting_for_others(directory: Path, *, beyond: int = -1) -> RunStatus:
    """Wait until a run says that it only waits for others, and has made more progress than that."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            for path in directory.glob("run-*.status"):
                status = StatusPage(path).read()
                waits = status is not None and status.phase == WAITS and status.message
                if status is not None and waits and status.progress_count > beyond:
                    return status
            await asyncio.sleep(0.02)


async def test_spans_whose_dumps_are_found_later_come_first_and_what_others_finished_is_not_claimed(
    store: Path,
) -> None:
    made = make_store(store, [4] * 20)  # spans of two blocks, and one of one
    options = ExtractOptions(store=store, worker=(0, 1))
    with Claims(made, "me", worker="0/1") as claims:
        work = SharedWork(made, claims, options, lambda **_: None)
        work.prepare()
        begun = [await work.next()]
        for block in (2, 3):
            commit_block(made, block, made.layout.block(block).samples)
        work.prefer([18])
        begun += [await work.next() for _ in range(4)]
        claimed = left_claims(store)

    assert [block for block, _ in filter(None, begun)] == [0, 1, 6, 4, 5]
    assert claimed == ["0", "2", "3", "worker-0-of-1"]

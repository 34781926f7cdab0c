"""`hsstore extract` into a bucket: the store of a run onto a disk, whatever happens on the way."""
# ruff: noqa: ASYNC110  # what is waited for has no event; nothing blocks

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import hsstore.cli  # noqa: F401  # registers the commands
from extraction import status_report
from extraction.block_sink import BlockSink, OpenBlock
from extraction.status import RunStatus, run_directory
from extraction.status_report import StatusReader
from extraction.watchdog.pages import RunPages
from hsstore.claims import Claims
from hsstore.cli.app import app
from hsstore.errors import UnreachableError
from hsstore.location import RemotePath
from hsstore.objects.write import find_uploads
from hsstore.stage import PREFIX, Stage
from hsstore.store import Store
from hsstore.testing.invariants import check_same_data, complete_samples
from hsstore.testing.stores import make_store, start_block
from hsstore.verify import VerifyOptions, verify_store
from tests.extraction.fake_server import serve_fake
from tests.extraction.forks import forks
from tests.extraction.running import run_here
from tests.extraction.tiny import make_lengths, write_data
from tests.objects.s3 import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.extraction.fake_server import FakeServer
    from tests.extraction.forks import Fork, Forks
    from tests.objects.s3 import S3

SAMPLES = 24
SIZES: dict[str, Any] = {"chunk_rows": 8, "shard_rows": 64, "span_samples": 6}
"""So small that these samples fill four spans and a dozen shards."""
PATIENCE_SECONDS = 240
KILLS = 2


class Place:
    """A server and where its spool is."""

    def __init__(self, fake: FakeServer, spool: Path) -> None:
        self.url, self.spool = fake.url, spool


@pytest.fixture
def data(directory: Path) -> Path:
    """Give samples of 1 to 20 tokens."""
    return write_data(directory / "data.jsonl", make_lengths(SAMPLES, longest=20))


@pytest.fixture
def url(remote: S3) -> RemotePath:
    """Give a URL where nothing is."""
    return RemotePath(remote.new("s.zarr"))


@pytest.fixture
def starter(remote: S3, directory: Path) -> Iterator[Forks]:
    """Give a process that starts runs, with the credentials in its environment."""
    del remote
    with forks(directory) as found:
        yield found
        found.kill_all()


def left_over(url: RemotePath) -> list[str]:
    """Return the claims and the uploads that are still there."""
    claims = RemotePath(f"{url}.runs/claims").find()
    uploads = [upload.url for upload in find_uploads(str(url))]
    return [name for name, size in claims.items() if size and not name.endswith(".beat")] + uploads


async def test_a_run_that_loses_the_store_goes_on_where_it_was_and_makes_what_one_onto_a_disk_makes(
    remote: S3, url: RemotePath, directory: Path, data: Path
) -> None:
    local, spool, stage = directory / "local.zarr", directory / "spool", directory / "stage"
    samples = RemotePath(remote.new("data.jsonl"))
    remote.put(data, str(samples))
    options: dict[str, Any] = SIZES | {"stage": stage}
    async with serve_fake(spool, SAMPLES) as fake:
        await run_here(local, fake.url, spool, data, **SIZES)
        away_and_forbidden = [
            {"what": "reset", "where": r"PUT .*s\.zarr/complete/c\.2", "times": 10_000},
            {"what": 403, "where": r"PUT .*/runs/[^/]*/zarr\.json", "times": 1, "later": 1},
        ]
        remote.fail_all(away_and_forbidden)  # the latter when the record is closed
        away = await run_here(url, fake.url, spool, samples, **options)
        committed = complete_samples(Store.open(url))
        remote.fail("", "", times=0)
        remote.requests()
        done = await run_here(url, fake.url, spool, **options)
        written = [
            one["path"].rpartition("s.zarr/")[2]
            for one in remote.requests()
            if one["method"] == "PUT" and "/s.zarr/" in one["path"] and not one["query"]
        ]
        filled = await run_here(url, fake.url, spool, **options)

    assert away.code == 75, away.message
    assert away.message.startswith(f"cannot write {url}/complete/c.2: ")
    assert len(committed) < SAMPLES
    assert (done.code, done.message) == (0, f"complete: all {SAMPLES} samples are in {url}")
    assert filled.code == 0
    check_same_data(Store.open(local), Store.open(url))
    assert verify_store(url, VerifyOptions()).ok
    assert written.index("digest/c.2") < written.index("complete/c.2")
    assert left_over(url) == []
    assert list(stage.iterdir()) == []
    names = list(url.parent.find())
    assert f"{url.name}/zarr.json" in names
    assert not [name for name in names if SECRET.encode() in (url.parent / name).read_bytes()]


async def test_workers_that_are_killed_while_they_write_leave_no_bit_without_states_and_are_replaced(
    remote: S3, url: RemotePath, directory: Path, data: Path, starter: Forks
) -> None:
    local, spool = directory / "local.zarr", directory / "spool"
    options: dict[str, Any] = SIZES | {"stage": directory / "stage", "max_in_flight": 4}
    async with serve_fake(spool, SAMPLES) as fake, serve_fake(directory / "two", SAMPLES) as two:
        await run_here(local, fake.url, spool, data, **SIZES)
        expected = Store.open(local).completion().digest
        places = Place(fake, spool), Place(two, directory / "two")

        def start(number: int, workers: int) -> Fork:
            return starter.start(url, places[number], data, worker=(number, workers), **options)

        for kill in range(KILLS):
            run = start(kill % 2, 2)
            what = r"(PUT|POST) .*s\.zarr/(hidden_states|digest|complete)/"
            remote.fail("kill", what, later=2 + 3 * kill, pid=run.pid)
            await gone(run)
            if any(name == "zarr.json" for name in url.find()):
                store = Store.open(url)
                for sample in complete_samples(store):
                    assert store.completion().digest[sample] == expected[sample]
                    store.states(sample)
        remote.fail("", "", times=0)
        runs = [start(0, 3), start(1, 3)]
        for run in runs:
            await gone(run)

    assert [run.ended() for run in runs] == [
        (0, f"complete: all {SAMPLES} samples are in {url}")
    ] * 2
    check_same_data(Store.open(local), Store.open(url))
    assert verify_store(url, VerifyOptions()).ok
    assert left_over(url) == []
    assert list((directory / "stage").iterdir()) == []


async def test_what_is_open_when_the_store_is_away_is_given_up_without_a_request(
    remote: S3, url: RemotePath
) -> None:
    remote.requests()  # skips, where it is to, before anything is open
    store = make_store(url, [4] * 20)
    with Claims(store, "run") as claims, ThreadPoolExecutor(1) as encoders:
        claims.take([0, 1])
        sink = BlockSink(store, claims, "run", 1)
        asked: list[set[str]] = []
        blocks = [open_block(store, index, encoders) for index in range(3)]
        remote.fail("reset", ".*", times=10_000)
        remote.requests()
        for block in blocks:
            with pytest.raises(UnreachableError):
                await sink.commit(block)
            asked.append({one["method"] for one in remote.requests() if ".beat" not in one["path"]})
        sink.close()
        remote.fail("", "", times=0)

    assert [bool(methods) for methods in asked] == [True, False, False]


def open_block(store: Store, index: int, encoders: ThreadPoolExecutor) -> OpenBlock:
    """Give a block with one sample, of which an upload was begun."""
    block = store.layout.block(index)
    sample = block.samples.start
    writer = start_block(store, index, [sample], encoders, "run")
    writer.flush()
    tokens = {sample: store.input_ids(sample)}
    return OpenBlock(block, tokens, set(), appended={sample}, writer=writer)


async def gone(run: Fork) -> None:
    """Wait until a run has ended, or was killed."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while run.alive:
            await asyncio.sleep(0.02)


def test_status_shows_the_runs_at_work_by_their_signs_of_life(remote: S3, mixed: Path) -> None:
    store = Store.open(remote.upload(mixed))
    said = RunStatus(run="0123456789ab", worker="1/2", phase="extracting", host="node7", samples=9)
    with Claims(store, said.run, worker="1/2", say=said.model_dump_json().encode):
        shown = CliRunner().invoke(app, ["status", str(store.location), "--json"])
    after = CliRunner().invoke(app, ["status", str(store.location)])
    nothing = CliRunner().invoke(app, ["status", remote.new("none.zarr")])

    (run,) = json.loads(shown.stdout)["runs"]
    assert (run["run"], run["host"], run["source"]) == (said.run, "node7", "copy")
    assert run["age_seconds"] < PATIENCE_SECONDS
    assert "no run is going on here" in after.stdout
    assert f"of {len(store):,} samples complete" in after.stdout
    assert (nothing.exit_code, "no hsstore store is there" in nothing.stderr) == (2, True)


@pytest.mark.parametrize(
    ("what", "times", "patience_seconds", "said"),
    [("delay", 1, 0.2, "no answer in"), ("reset", 10_000, PATIENCE_SECONDS, "tried 9 times")],
)
def test_status_shows_a_run_of_this_machine_also_while_the_store_is_away(
    s3: S3,
    mixed: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    times: int,
    patience_seconds: float,
    said: str,
) -> None:
    url = s3.shared(mixed)
    pages, reader = RunPages.create(run_directory(), url), StatusReader(RemotePath(url))
    try:
        pages.status.write(RunStatus(run="0123456789ab", phase="extracting", store=url))
        monkeypatch.setattr(status_report, "OBJECTS_SECONDS", patience_seconds)
        s3.fail(what, ".*", times=times, seconds=60)
        away = reader.read()
        s3.fail("", "", times=0)
        monkeypatch.setattr(status_report, "OBJECTS_SECONDS", PATIENCE_SECONDS)
        there = reader.read()
    finally:
        pages.remove()

    assert [run.run for run in away.runs] == ["0123456789ab"]
    assert said in away.unread
    assert (away.samples, there.samples, there.unread) == (None, len(Store.open(mixed)), "")


def test_the_stage_of_a_run_is_removed_by_it_or_by_the_next_one_when_it_is_dead(
    directory: Path,
) -> None:
    dead = directory / f"{PREFIX}dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "plan").write_bytes(b"left")
    with Stage(directory, "one") as one, Stage(directory, "two") as two:
        both = sorted(directory.iterdir())

    assert both == [one.path, two.path]
    assert list(directory.iterdir()) == []

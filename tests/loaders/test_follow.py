"""Following a run: samples are served as their bits are set, and the end is the run's end."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from hsstore.claims import Claims
from hsstore.create import LayoutOptions
from hsstore.errors import InputError
from hsstore.loaders import Eagle3Stream, StreamLoader
from hsstore.loaders.follow import RunWatch
from hsstore.spec import FailureReason
from hsstore.testing.stores import commit_block, make_store
from tests.loaders.batches import served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hsstore.store import Store

LENGTHS = [5, 4, 7, 3, 6, 6, 2, 8, 5, 4, 9, 3, 4, 4, 5, 6]
PATIENCE = 60.0
SHORT_PATIENCE = 2.0


@pytest.fixture
def pending(tmp_path: Path) -> Store:
    options = LayoutOptions(chunk_rows=4, shard_rows=32, span_samples=8)
    return make_store(tmp_path / "s.zarr", LENGTHS, options=options)


def follower(store: Store, **options: Any) -> Eagle3Stream:
    given = {"batch_size": 2, "follow": True, "patience_seconds": PATIENCE} | options
    return Eagle3Stream(store.path, **given)


def extract(
    store: Store,
    failed: int | None = None,
    *,
    blocks: int | None = None,
    ends: Event | None = None,
) -> None:
    """Write block after block, claims held, as a run does; the last one when it may end."""
    blocks = store.layout.blocks if blocks is None else blocks
    with Claims(store, "run") as claims:
        claims.take(range(store.layout.spans))
        for block in range(blocks):
            if ends is not None and block == blocks - 1:
                ends.wait(60)
            samples = store.layout.block(block).samples
            reasons = {s: FailureReason.BAD_DATA for s in samples if s == failed}
            commit_block(store, block, [s for s in samples if s != failed], reasons)
            time.sleep(0.3)


@pytest.fixture
def ends() -> Event:
    """Tell the run that it may end."""
    return Event()


@pytest.fixture
def running(pending: Store, ends: Event) -> Iterator[Thread]:
    thread = Thread(target=extract, args=(pending, 5), kwargs={"ends": ends})
    yield thread
    ends.set()
    thread.join()


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_a_run_commits_is_served_once_and_its_end_is_the_end(
    pending: Store, running: Thread, ends: Event, ranks: int
) -> None:
    streams = [iter(follower(pending, rank=r, ranks=ranks, tail="uneven")) for r in range(ranks)]
    running.start()

    first = next(streams[0])
    was_running = not pending.completion().complete.all()
    ends.set()
    batches = [first, *(batch for stream in streams for batch in stream)]

    assert was_running
    assert sorted(served(batches)) == [s for s in range(len(LENGTHS)) if s != 5]


def test_every_rank_makes_the_same_number_of_steps(
    pending: Store, running: Thread, ends: Event
) -> None:
    running.start()
    ends.set()
    shares = [list(follower(pending, rank=r, ranks=3)) for r in range(3)]

    assert len({len(share) for share in shares}) == 1
    everything = [batch for share in shares for batch in share]
    assert set(served(everything)) == set(range(len(LENGTHS))) - {5}


def test_a_run_that_dies_ends_it_with_what_is_there(pending: Store) -> None:
    extract(pending, blocks=1)  # given back, as at a clean end; the rest stays pending
    complete = pending.completion().complete.nonzero()[0].tolist()

    started = time.monotonic()
    batches = list(follower(pending, patience_seconds=SHORT_PATIENCE))

    assert sorted(served(batches)) == complete
    assert time.monotonic() - started > SHORT_PATIENCE


def test_a_run_that_holds_its_lock_is_alive_however_quiet(pending: Store) -> None:
    with Claims(pending, "run") as claims:
        claims.take([0])
        watch = RunWatch(pending, 0.2)
        watch.is_over()
        time.sleep(0.4)
        assert not watch.is_over()
    watch.is_over()
    time.sleep(0.4)
    assert watch.is_over()


def test_workers_share_what_a_rank_follows(pending: Store, running: Thread, ends: Event) -> None:
    running.start()
    ends.set()

    batches = list(StreamLoader(follower(pending), num_workers=2))

    assert sorted(served(batches)) == [s for s in range(len(LENGTHS)) if s != 5]


def test_a_following_stream_has_no_length_and_no_state(pending: Store) -> None:
    stream = follower(pending)

    with pytest.raises(TypeError, match="no length"):
        len(stream)
    with pytest.raises(InputError, match="no state"):
        stream.state_dict()
    with pytest.raises(InputError, match="needs to know the end"):
        follower(pending, tail="drop")

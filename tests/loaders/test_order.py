"""The order of an epoch, and how it is dealt to ranks and workers."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hsstore.errors import InputError
from hsstore.loaders.order import (
    Cutting,
    Share,
    Shuffle,
    Tail,
    deal,
    plan_by_block,
    plan_epoch,
    repeats,
    steps,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

numbers = st.integers(1, 7)
some_rows = st.lists(st.integers(1, 30), min_size=1, max_size=80)
cuttings = st.one_of(
    st.builds(Cutting, batch_size=st.integers(1, 9)),
    st.builds(Cutting, pack_rows=st.integers(30, 90)),
)


def blocks(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Put samples into blocks of 1, 2, 3 and so on."""
    return np.repeat(np.arange(count), np.arange(1, count + 1))[:count]


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def everybody(batches: int, start: int, ranks: int, workers: int, tail: Tail) -> list[list[int]]:
    """Deal, and return the batches of each rank in the order in which a DataLoader yields them."""
    dealt = []
    for rank in range(ranks):
        turns = [
            [n for n, _ in deal(batches, start, Share(rank, ranks, worker, workers), tail)]
            for worker in range(workers)
        ]
        longest = max(map(len, turns))
        dealt.append([turn[i] for i in range(longest) for turn in turns if i < len(turn)])
    return dealt


@given(rows=some_rows, cutting=cuttings, seed=numbers, epoch=numbers, buffer=st.integers(1, 40))
def test_every_sample_comes_once_whatever_the_options(
    rows: list[int], cutting: Cutting, seed: int, epoch: int, buffer: int
) -> None:
    shuffle = Shuffle(seed, epoch, buffer)
    for function in (plan_epoch, plan_by_block):
        plan = function(blocks(len(rows)), np.array(rows), cutting, shuffle)

        batches = [plan.batch(number).tolist() for number in range(len(plan))]
        assert sorted(flat(batches)) == list(range(len(rows)))
        assert all(batches)
        if cutting.pack_rows:
            assert all(sum(rows[i] for i in batch) <= cutting.pack_rows for batch in batches)
        else:
            assert all(len(batch) <= (cutting.batch_size or 0) for batch in batches)


@given(batches=st.integers(1, 40), ranks=numbers, workers=numbers, start=st.integers(0, 40))
def test_ranks_and_workers_share_the_batches_and_keep_their_order(
    batches: int, ranks: int, workers: int, start: int
) -> None:
    dealt = everybody(batches, start, ranks, workers, "uneven")

    assert sorted(flat(dealt)) == list(range(start, batches))
    assert dealt == everybody(batches, start, ranks, 1, "uneven")
    assert all(mine == sorted(mine) for mine in dealt)


@given(batches=st.integers(1, 40), ranks=numbers, workers=numbers, start=st.integers(0, 40))
def test_padded_or_cut_all_ranks_make_the_same_steps(
    batches: int, ranks: int, workers: int, start: int
) -> None:
    padded = everybody(batches, start, ranks, workers, "pad")
    cut = everybody(batches, start, ranks, workers, "drop")

    assert len({len(mine) for mine in padded}) == len({len(mine) for mine in cut}) == 1
    assert len(padded[0]) == steps(batches, start, Share(0, ranks), "pad")
    rest = list(range(start, batches))
    assert sorted(flat(padded)) == sorted(rest + repeats(batches, start, ranks, "pad"))
    assert set(flat(cut)) == set(rest[: len(rest) // ranks * ranks])


@given(batches=st.integers(1, 60), ranks=numbers, then=numbers, steps_made=st.integers(0, 8))
def test_another_number_of_ranks_goes_on_with_exactly_what_was_not_seen(
    batches: int, ranks: int, then: int, steps_made: int
) -> None:
    before = [mine[:steps_made] for mine in everybody(batches, 0, ranks, 1, "uneven")]

    after = everybody(batches, steps_made * ranks, then, 2, "uneven")

    assert sorted(flat(before) + flat(after)) == list(range(batches))


def test_blocks_are_shuffled_and_samples_within_a_window_only() -> None:
    block = np.repeat(np.arange(100), 10)

    order = Shuffle(seed=3, buffer_samples=50).order(block)

    windows = order.reshape(-1, 50) // 10
    assert all(len(set(window)) == 5 for window in windows.tolist())
    assert len({tuple(sorted(set(window))) for window in windows.tolist()}) == 20
    assert sorted(windows[0].tolist()) != windows[0].tolist()


def test_epochs_and_seeds_give_other_orders_and_each_always_the_same() -> None:
    block = blocks(12)

    assert Shuffle(1, 2).order(block).tolist() == Shuffle(1, 2).order(block).tolist()
    orders = {tuple(Shuffle(seed, epoch).order(block)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


def test_the_order_is_the_same_on_every_machine_and_version() -> None:
    """A change here makes states that were saved before go on with other samples."""
    expected = [11, 10, 0, 5, 4, 3, 1, 6, 9, 8, 2, 7]

    assert Shuffle(1, 2, 6).order(blocks(12)).tolist() == expected


def test_without_shuffling_samples_stay_in_order() -> None:
    plan = plan_epoch(blocks(7), np.ones(7, np.int64), Cutting(batch_size=3), None)

    assert [plan.batch(k).tolist() for k in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_rows_are_one_less_than_tokens_and_cut_to_what_a_batch_takes() -> None:
    length = np.array([1, 2, 5, 900])

    assert Cutting(batch_size=1).rows(length).tolist() == [0, 1, 4, 899]
    assert Cutting(batch_size=1, max_length=5).rows(length).tolist() == [0, 1, 4, 4]
    assert Cutting(pack_rows=100).rows(length).tolist() == [0, 1, 4, 100]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either batch_size"),
        ({"batch_size": 1, "pack_rows": 8}, "either batch_size"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 1, "max_length": 1}, "max_length is 1; it must be at least 2"),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cutting(**options)

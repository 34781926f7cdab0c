"""In which order samples are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from extraction.block_order import by_block, span_order
from hsstore.layout import Geometry, plan_layout

SIZES = Geometry(4, 16, 2, chunk_rows=4, chunk_slots=4, shard_rows=16, span_samples=6)


def test_pending_samples_come_block_by_block_in_their_order() -> None:
    layout = plan_layout(np.array([3, 9, 40, 1, 16, 5, 7, 7, 2, 30]), SIZES)
    pending = np.array([0, 2, 3, 6, 7, 8])

    found = list(by_block(layout, pending))

    assert [sample for _, samples in found for sample in samples] == pending.tolist()
    assert [index for index, _ in found] == sorted({layout.block_of(s) for s in pending.tolist()})
    assert all(layout.block_of(s) == index for index, samples in found for s in samples)


def test_nothing_pending_gives_no_block() -> None:
    layout = plan_layout(np.array([3, 9]), SIZES)

    assert list(by_block(layout, np.zeros(0, np.int64))) == []


def test_no_shard_has_samples_of_two_spans() -> None:
    """What two workers write is of two spans: so they share no file."""
    lengths = np.random.default_rng(0).integers(1, 70, 500)
    layout = plan_layout(lengths, SIZES)

    spans: dict[int, set[int]] = {}
    for sample, length in enumerate(lengths.tolist()):
        for place in layout.chunks_of(sample, length):
            spans.setdefault(place.shard, set()).add(sample // SIZES.span_samples)

    assert all(len(of_shard) == 1 for of_shard in spans.values())


def test_a_worker_comes_to_its_own_spans_in_order_and_to_those_of_others_from_the_far_end() -> None:
    spans = [0, 1, 2, 4, 5, 7, 9, 10]  # those with something pending

    assert span_order(spans, 1, 3) == [1, 4, 7, 10, 9, 5, 2, 0]
    assert span_order(spans, 2, 3) == [2, 5, 10, 9, 7, 4, 1, 0]
    assert span_order(spans, 0, 1) == spans
    assert span_order(spans, 6, 8) == spans[::-1]  # none is its own


def test_spans_whose_dumps_are_there_come_first_whosesoever_they_are() -> None:
    assert span_order([0, 1, 2, 3, 4, 5], 0, 2, first={5, 2, 99}) == [2, 5, 0, 4, 3, 1]
    assert span_order([], 0, 2, first={5}) == []


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 40])
def test_workers_together_own_every_span_once(workers: int) -> None:
    orders = [span_order(range(40), worker, workers) for worker in range(workers)]

    assert all(sorted(order) == list(range(40)) for order in orders)
    own = [span for n, order in enumerate(orders) for span in order[: len(range(n, 40, workers))]]
    assert sorted(own) == list(range(40))

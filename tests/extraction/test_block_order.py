"""In which order samples are asked for."""

from __future__ import annotations

import numpy as np

from extraction.block_order import by_block
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

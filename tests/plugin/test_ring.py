"""The ring of staging memory."""

from __future__ import annotations

import threading

from hypothesis import given, strategies as st

from hsstore_sglang.ring import Ring


@given(
    size=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.integers(1, 400), st.integers(0, 5)), max_size=60),
)
def test_no_two_parts_overlap_and_none_leaves_the_buffer(
    size: int, steps: list[tuple[int, int]]
) -> None:
    ring = Ring(size)
    live: dict[int, int] = {}

    for wanted, give_back in steps:
        offset = ring.take(wanted)
        if offset is not None:
            assert offset + wanted <= size
            assert all(offset + wanted <= o or o + n <= offset for o, n in live.items())
            live[offset] = wanted
        for _ in range(min(give_back, len(live))):
            oldest = list(live)[give_back % len(live)]
            del live[oldest]
            ring.give_back(oldest)

    for offset in list(live):
        ring.give_back(offset)
    assert ring.used_bytes() == 0
    assert ring.take(size - size % 64 or 1) == (0 if size >= 64 else None)


def test_a_full_ring_refuses_and_serves_whoever_waits_for_room() -> None:
    ring = Ring(1024)
    first = ring.take(1024)
    assert first == 0
    assert ring.take(64) is None
    assert ring.take(64, wait_seconds=0.01) is None
    threading.Timer(0.05, lambda: ring.give_back(0)).start()

    assert ring.take(64, wait_seconds=60) == 0

"""Reading ahead stays in order and within its bytes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from hsstore.create import LayoutOptions
from hsstore.loaders.prefetch import in_order, on_threads
from hsstore.testing.stores import fill_store, make_model, make_store

if TYPE_CHECKING:
    from pathlib import Path


@given(sizes=st.lists(st.integers(1, 9)), budget=st.integers(0, 20))
def test_results_come_in_order_and_what_is_ahead_fits_the_budget(
    sizes: list[int], budget: int
) -> None:
    asked: list[int] = []
    taken: list[int] = []

    class Result:
        def __init__(self, number: int) -> None:
            asked.append(number)
            ahead = [sizes[one] for one in asked[len(taken) :]]
            assert sum(ahead) <= budget or len(ahead) == 1
            self.number = number

        def result(self) -> int:
            taken.append(self.number)
            return self.number

        def cancel(self) -> None:
            raise AssertionError("everything is taken")

    results = list(in_order(((size, k) for k, size in enumerate(sizes)), Result, budget))

    assert results == asked == taken == list(range(len(sizes)))


def test_the_next_is_on_its_way_while_the_caller_computes() -> None:
    asked: list[int] = []

    def submit(number: int) -> Future[int]:
        asked.append(number)
        future: Future[int] = Future()
        future.set_result(number)
        return future

    results = in_order(((1, k) for k in range(9)), submit, 3)

    assert next(results) == 0
    assert asked == [0, 1, 2, 3]


def test_an_error_comes_where_its_result_would_and_ends_the_threads() -> None:
    def divide(by: int) -> float:
        return 6 / by

    results = on_threads(((1, by) for by in (3, 2, 0, 1)), divide, 99)

    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_what_nobody_takes_any_more_is_cancelled() -> None:
    with ThreadPoolExecutor(1) as threads:
        gate: Future[None] = Future()
        futures = [threads.submit(gate.result)]

        def submit(number: int) -> Future[int]:
            futures.append(threads.submit(int, number))  # type: ignore[arg-type]
            return futures[-1]  # type: ignore[return-value]

        results = in_order(((1, k) for k in range(5)), submit, 5)
        gate.set_result(None)
        next(results)
        results.close()
    assert all(future.done() for future in futures)


PROGRAM = """
import resource, sys, time, torch
from hsstore.loaders import Eagle3Stream, StreamLoader
torch.set_num_threads(1)
path, workers, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
stream = Eagle3Stream(path, batch_size=1, prefetch_bytes=budget)
loader = StreamLoader(stream, num_workers=workers)
batches = iter(loader)
next(batches)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
time.sleep(1)  # long enough to read everything, if nothing held it back
total = sum(sum(t.nbytes for t in batch.values()) for batch in batches)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(stream.largest_batch_bytes(), total, (after - before) * 1024)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a store of 24 samples of 6 MB each."""
    path = tmp_path_factory.mktemp("large") / "store.zarr"
    options = LayoutOptions(chunk_rows=128, shard_rows=1024)
    store = make_store(path, [512] * 24, model=make_model(hidden=2048), options=options)
    fill_store(store)
    return path


def test_memory_is_bounded_by_the_budget_and_not_by_the_epoch(large: Path) -> None:
    budget = 16 << 20

    command = [sys.executable, "-c", PROGRAM, str(large), "0", str(budget)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    largest, total, grown = map(int, out.split())

    assert total > 8 * budget
    # What is ahead, the batch in the caller's hands, and one that each thread of the decoder works on.
    assert grown < budget + 3 * largest + (24 << 20)

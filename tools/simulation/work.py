"""What the simulated workers have to do: blocks of samples, cut as a store cuts them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from extraction.spool.dump import DUMP_OVERHEAD_BYTES
from hsstore.errors import InputError
from hsstore.layout import choose_geometry, plan_layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.layout import Layout
    from tools.simulation.scenario import Data, Scenario

    Int64s = npt.NDArray[np.int64]

MANY_WORKERS = 8
"""Of more than so many, all with the same load, only these are simulated. With fewer, bursts of one
worker would not meet the pauses of others."""
SHORTEST = 16
ID_BYTES = 4
"""Of each token in a dump, beside its states."""


@dataclass(slots=True)
class Work:
    """Spans that no worker has claimed yet.

    Attributes
    ----------
    spans : tuple of deque
        Of each worker that is simulated, the spans that it prefers; a span is a list of blocks, a
        block a list of the tokens of its samples.
    """

    spans: tuple[deque[list[list[int]]], ...]
    layout: Layout
    samples: int
    tokens: int
    all_tokens: int
    """Of the workers that are not simulated, too."""

    def blocks_for(self, worker: int) -> Iterator[list[int]]:
        """Yield blocks: of the worker's own spans, then of those that others have not begun."""
        while (span := self._claim(worker)) is not None:
            yield from span

    def _claim(self, worker: int) -> list[list[int]] | None:
        if self.spans[worker]:
            return self.spans[worker].popleft()
        behind = max(self.spans, key=len)
        return behind.pop() if behind else None


def simulated_workers(scenario: Scenario) -> int:
    """Return how many of the workers are simulated."""
    return scenario.simulated_workers or min(scenario.workers.count, MANY_WORKERS)


def plan_work(scenario: Scenario) -> Work:
    """Lay the whole store out, and take the spans of the workers that are simulated.

    Raises
    ------
    InputError
        A sample fits into no spool or memory budget.
    """
    length = draw_lengths(scenario.data, scenario.seed)
    _refuse_too_large(int(length.max()), scenario)
    layout = _plan(length, scenario)
    count, simulated = scenario.workers.count, simulated_workers(scenario)
    spans = tuple(
        deque(_blocks(layout, length, span) for span in range(worker, layout.spans, count))
        for worker in range(simulated)
    )
    blocks = [block for worker in spans for span in worker for block in span]
    tokens = sum(map(sum, blocks))
    return Work(spans, layout, sum(map(len, blocks)), tokens, int(length.sum()))


def draw_lengths(data: Data, seed: int) -> Int64s:
    """Return the tokens of each sample, shape (n,).

    Drawn ones are log-normal with the mean and median asked for, cut to what is allowed and scaled
    until they have that mean.
    """
    if data.lengths_file is not None:
        return _read_lengths(data.lengths_file)
    median = data.tokens_median or data.tokens_mean * 2 / 3
    sigma = np.sqrt(2 * np.log(data.tokens_mean / median))
    drawn = np.random.default_rng(seed).lognormal(np.log(median), sigma, data.samples)
    low, high = 0.0, 1e3
    for _ in range(40):
        scale = (low + high) / 2
        mean = np.clip(drawn * scale, SHORTEST, data.tokens_longest).mean()
        low, high = (low, scale) if mean > data.tokens_mean else (scale, high)
    return np.rint(np.clip(drawn * high, SHORTEST, data.tokens_longest)).astype(np.int64)


def dump_bytes(tokens: int, row_bytes: int) -> int:
    """Return what a dump takes of the spool, at most."""
    return tokens * (row_bytes + ID_BYTES) + DUMP_OVERHEAD_BYTES


def _read_lengths(path: Path) -> Int64s:
    try:
        loaded = np.load(path) if path.suffix == ".npy" else np.loadtxt(path, ndmin=1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no lengths: {error}") from error
    length: Int64s = np.asarray(loaded).astype(np.int64)
    if length.ndim != 1 or not length.size or length.min() < 1:
        raise InputError(f"{path}: lengths are one list of whole numbers above 0")
    return length


def _refuse_too_large(longest: int, scenario: Scenario) -> None:
    needed = dump_bytes(longest, scenario.row_bytes)
    for name in ("spool_gb", "memory_gb"):
        limit = getattr(scenario.workers, name)
        if needed > limit * 1e9:
            raise InputError(
                f"the dump of the longest sample, {longest:,} tokens, takes {needed / 1e9:,.3f} GB; "
                f"workers.{name} is {limit:g}: raise it, or lower data.tokens_longest"
            )


def _plan(length: Int64s, scenario: Scenario) -> Layout:
    workers, model = scenario.workers, scenario.model
    geometry = choose_geometry(
        length,
        slots=model.slots,
        hidden=model.hidden,
        itemsize=model.dtype_bytes,
        chunk_rows=workers.chunk_rows,
        shard_rows=workers.shard_rows,
        span_samples=workers.span_samples,
    )
    layout = plan_layout(length, geometry)
    if layout.spans < workers.count:
        raise InputError(
            f"{workers.count} workers, but the store has {layout.spans} spans, and a span has one "
            "worker: lower workers.span_samples, or workers.count"
        )
    return layout


def _blocks(layout: Layout, length: Int64s, span: int) -> list[list[int]]:
    where = layout.span_slice(span)
    first, end = np.searchsorted(layout.block_sample, (where.start, where.stop)).tolist()
    edges = layout.block_sample[first : end + 1].tolist()
    return [length[start:stop].tolist() for start, stop in pairwise(edges)]

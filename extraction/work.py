"""What a run has to do: the blocks that it fills, in their order, and the claims that make them its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from extraction.block_order import by_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from extraction.options import ExtractOptions
    from hsstore.claims import Claims
    from hsstore.store import Store


class Work:
    """All that is pending in a store, claimed before the first request: the run is alone on it.

    Attributes
    ----------
    waiting : str
        What the run waits for that others do; empty while it has something to do itself.
    """

    def __init__(self, store: Store, claims: Claims, options: ExtractOptions) -> None:
        self._store = store
        self._claims = claims
        self._retry_failed = options.retry_failed
        self._blocks: Iterator[tuple[int, list[int]]] | None = None
        self.waiting = ""

    def prepare(self) -> None:
        """Claim every span that has something to do, and make failed samples pending if asked.

        Blocks on the disk, as nothing else here does.

        Raises
        ------
        RefusedError
            Somebody else writes the store.
        """
        self._claims.refuse_workers()
        completion = self._store.completion()
        todo = ~completion.complete if self._retry_failed else completion.pending
        self._claims.take(np.unique(np.flatnonzero(todo) // self._span_samples).tolist())
        self._claims.refuse_workers()  # who has come meanwhile
        if self._retry_failed:
            self._store.reset_failed(np.flatnonzero(completion.failed))

    def prefer(self, samples: Iterable[int]) -> None:
        """Take note of samples whose dumps are there already: theirs is the work to begin with."""

    async def next(self) -> tuple[int, list[int]] | None:
        """Return the next block and its pending samples, ascending; None when there is no more.

        Raises
        ------
        InterruptedRunError
            Others were to do the rest, and nothing is heard of them.
        """
        if self._blocks is None:
            completion = await asyncio.to_thread(self._store.completion)
            self._blocks = by_block(self._store.layout, np.flatnonzero(completion.pending))
        return next(self._blocks, None)

    async def close(self, block: int) -> None:
        """Take note that all samples of a block are committed, or given up."""

    @property
    def _span_samples(self) -> int:
        return self._store.spec.layout.span_samples

"""In which order an epoch goes through the samples, and who gets which batch. Pure; no I/O, no torch.

::

    samples      0 1 2 | 3 4 | 5 6 7 8 | ...          complete samples, by block
    order        5 8 3 6 | 4 7 2 0 | 1 ...            blocks shuffled, then each window of it
    batches      [5 8] [3 6] [4 7] [2 0] [1 ...       cut by number, or packed by rows
    step           0     0     1     1     2          two ranks: rank 0 takes the first of each step
    worker         0     0     1     1     0          two workers a rank take turns

The order and the batches depend on the samples, the seed, the epoch and the options alone. Ranks and
workers only deal out whole batches. So the position of a training is one number, how many batches have been
dealt, and any number of ranks and workers can go on from it with exactly what has not been seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

Tail = Literal["pad", "drop", "uneven"]
"""What becomes of the last step where batches are missing for some ranks: they repeat the first batches of
the epoch; it is left out for all ranks; or those ranks make a step less."""


@dataclass(frozen=True, slots=True)
class Cutting:
    """How samples are put together to batches."""

    batch_size: int | None = None
    """So many samples, padded; or"""
    pack_rows: int | None = None
    """as many as fit into so many rows, one behind the other."""
    max_length: int | None = None
    """Longer samples are cut to so many tokens."""

    def __post_init__(self) -> None:
        if (self.batch_size is None) == (self.pack_rows is None):
            raise InputError("give either batch_size, for padding, or pack_rows, for packing")
        for name, least in (("batch_size", 1), ("pack_rows", 1), ("max_length", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}; it must be at least {least}")

    def rows(self, length: npt.NDArray[np.integer]) -> Int64s:
        """Return how many rows samples of these lengths give: one less than tokens, after the shift."""
        rows = np.asarray(length, np.int64) - 1
        if self.max_length is not None:
            rows = np.minimum(rows, self.max_length - 1)
        return rows if self.pack_rows is None else np.minimum(rows, self.pack_rows)

    def cut(self, rows: Int64s) -> Int64s:
        """Cut samples of so many rows, in this order, to batches.

        Returns
        -------
        int64 (batches + 1,)
            First sample of each batch, and the number of samples.
        """
        count = len(rows)
        if self.pack_rows is None:
            return np.append(np.arange(0, count, self.batch_size), count)
        ends = np.cumsum(rows)
        # For each sample, the first that does not fit into a batch with it.
        following = np.searchsorted(ends, ends - rows + self.pack_rows, side="right").tolist()
        bounds = [0]
        while bounds[-1] < count:
            bounds.append(following[bounds[-1]])
        return np.array(bounds, np.int64)


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Which of the many orders."""

    seed: int = 0
    epoch: int = 0
    buffer_samples: int = 1024
    """Samples in a window. Nothing is held for it: a batch is read when it is due."""

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("epoch", 0), ("buffer_samples", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.seed >= 1 << 64:
            raise InputError(f"seed is {self.seed}; it must be below 2**64")

    def order(self, block: Int64s) -> Int64s:
        """Shuffle samples, given their blocks in ascending order, by block and then within windows.

        Returns
        -------
        int64 (n,)
            Positions in `block`.
        """
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        sizes = np.diff(np.append(starts, len(block)))
        keys = self._keys(len(starts) + len(block))
        rank = np.empty(len(starts), np.int64)
        rank[np.argsort(keys[: len(starts)], kind="stable")] = np.arange(len(starts))
        by_block = np.argsort(np.repeat(rank, sizes), kind="stable")
        window = np.arange(len(block)) // self.buffer_samples
        return np.asarray(by_block[np.lexsort((keys[len(starts) :], window))])

    def order_within(self, block: Int64s) -> Int64s:
        """Shuffle within each block alone; the blocks stay in order."""
        return np.lexsort((self._keys(len(block)), block))

    def _keys(self, count: int) -> npt.NDArray[np.uint64]:
        """Draw numbers; NumPy promises the raw stream of a bit generator for ever, and no other."""
        key = np.array([self.seed, self.epoch], np.uint64)
        return np.asarray(np.random.Philox(key=key).random_raw(count))


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """All batches of one epoch.

    Attributes
    ----------
    order : int64 (n,)
        Positions of the samples in the order of the epoch.
    bounds : int64 (batches + 1,)
        Where in it each batch begins, and its length.
    """

    order: Int64s
    bounds: Int64s

    def __len__(self) -> int:
        """Count the batches."""
        return len(self.bounds) - 1

    def batch(self, number: int) -> Int64s:
        """Return the positions of the samples of a batch."""
        return self.order[self.bounds[number] : self.bounds[number + 1]]


def plan_epoch(block: Int64s, rows: Int64s, cutting: Cutting, shuffle: Shuffle | None) -> EpochPlan:
    """Plan an epoch over samples in ascending order.

    Parameters
    ----------
    block : int64 (n,)
        The block of each sample.
    rows : int64 (n,)
        Its rows, as `Cutting.rows` tells.
    shuffle : Shuffle, optional
        Without it the samples stay in their order.
    """
    order = np.arange(len(block)) if shuffle is None else shuffle.order(block)
    return EpochPlan(order, cutting.cut(rows[order]))


def plan_by_block(
    block: Int64s, rows: Int64s, cutting: Cutting, shuffle: Shuffle | None
) -> EpochPlan:
    """Plan an epoch in which no batch reaches over the end of a block, and blocks stay in order."""
    order = np.arange(len(block)) if shuffle is None else shuffle.order_within(block)
    starts = np.flatnonzero(np.diff(block, prepend=-1)).tolist()
    bounds = [np.zeros(1, np.int64)]
    for start, end in zip(starts, [*starts[1:], len(block)], strict=True):
        bounds.append(cutting.cut(rows[order[start:end]])[1:] + start)
    return EpochPlan(order, np.concatenate(bounds))


@dataclass(frozen=True, slots=True)
class Share:
    """Who deals: one worker of one rank."""

    rank: int = 0
    ranks: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.ranks and 0 <= self.worker < self.workers):
            raise InputError(f"rank {self.rank} of {self.ranks} does not exist")


def steps(batches: int, start: int, share: Share, tail: Tail) -> int:
    """Count the steps that a rank makes, all its workers together.

    Parameters
    ----------
    batches : int
        Of the epoch.
    start : int
        Batches that have been dealt before.
    """
    left = max(batches - start, 0)
    if tail == "uneven":
        return max(-(-(left - share.rank) // share.ranks), 0)
    return left // share.ranks if tail == "drop" else -(-left // share.ranks)


def deal(
    batches: int, start: int, share: Share, tail: Tail, *, taken: int = 0
) -> Iterator[tuple[int, bool]]:
    """Yield the batches of a worker, and whether each is a repeat.

    Parameters
    ----------
    taken : int
        Batches that this worker has yielded already.
    """
    first = share.worker + taken * share.workers
    for step in range(first, steps(batches, start, share, tail), share.workers):
        number = start + step * share.ranks + share.rank
        yield number % batches, number >= batches


def repeats(batches: int, start: int, ranks: int, tail: Tail) -> list[int]:
    """Return the batches that are dealt twice, so that every rank makes the same number of steps."""
    if tail != "pad" or start >= batches:
        return []
    return [
        number % batches
        for number in range(batches, start + -(-(batches - start) // ranks) * ranks)
    ]

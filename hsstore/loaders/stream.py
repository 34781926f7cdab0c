"""EAGLE-3 batches as an iterable dataset: sharded, shuffled, resumable, or following an extraction."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import torch
import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info
from typing_extensions import override

from hsstore.errors import InputError
from hsstore.loaders.alignment import Eagle3Batch
from hsstore.loaders.follow import RunWatch, follow
from hsstore.loaders.order import Cutting, EpochPlan, Share, Shuffle, Tail, deal, repeats, steps
from hsstore.loaders.prefetch import on_threads
from hsstore.loaders.reading import BatchReader
from hsstore.loaders.selection import (
    aux_slots,
    completeness,
    decode_samples,
    encode_samples,
)
from hsstore.loaders.state import StreamState, check_state
from hsstore.loaders.table import Table
from hsstore.loaders.tensors import check_dtype, torch_dtype
from hsstore.location import require_local
from hsstore.store import Store
from hsstore.subset import of_split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hsstore.loaders.selection import Bools
    from hsstore.loaders.state import Order
    from hsstore.location import Location

log = logging.getLogger(__name__)

Task = tuple[int, list[int]]
"""Bytes of a batch, and its samples."""


class Eagle3Stream(IterableDataset[Eagle3Batch]):
    """The batches of a store's complete samples: EAGLE-3 batches, as `eagle3_collate` describes them.

    Each batch is read as a whole, straight into its tensors; a `DataLoader` gets `batch_size=None`,
    or use `StreamLoader`. Iterated as it is, without a `DataLoader`, it reads ahead in threads.

    The sequence of batches depends on the samples, the seed, the epoch and the options, not on ranks and
    workers, which only take turns in it: see `hsstore.loaders.order`. Which samples are complete
    is looked up once, when the stream is made; no payload is read then.

    Parameters
    ----------
    batch_size : int, optional
        So many samples a batch, padded on the right to the longest; or
    pack_rows : int, optional
        as many samples as fit into one line of so many rows. Batches then all have the shape (1, pack_rows).
        A sample that gives more rows is cut to them; the log says how many are.
    max_length : int, optional
        Longer samples are cut to so many tokens.
    layers : ints, optional
        The captured layers that are read, in this order; all if it is left out.
    dtype : torch.dtype, optional
        Of the states in a batch, bfloat16, float16 or float32; otherwise the store's.
    split : str, optional
        Samples of this split alone.
    shuffle : bool
        Blocks in random order, then samples within windows of `buffer_samples`.
    seed : int
        Together with the epoch it decides the order.
    rank, ranks : int, optional
        Which share of the batches; by default that of `torch.distributed`, if it is initialised.
    tail : str
        `pad`: ranks that would make a step less repeat the first batches of the epoch, see
        `repeated_samples`; `drop`: that step is left out; `uneven`: they make a step less.
    follow : bool
        Serve all samples of the plan, each as soon as its bit is set, and end when nothing is pending, or
        when no run has been seen alive for `patience_seconds`. Batches do not reach over the end of a block.
        The set of samples and the batches stay the same for any number of ranks and workers; the order is
        that in which they come. A following stream has no length and no state.
    prefetch_bytes : int
        Of batches that are read ahead, in threads, where no `DataLoader` does so.

    Raises
    ------
    InputError
        There is no store, split or layer, no sample to train on, or options contradict each other.
    """

    def __init__(
        self,
        path: str | Location,
        *,
        batch_size: int | None = None,
        pack_rows: int | None = None,
        max_length: int | None = None,
        layers: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        split: str | None = None,
        shuffle: bool = True,
        seed: int = 0,
        buffer_samples: int = 1024,
        rank: int | None = None,
        ranks: int | None = None,
        tail: Tail = "pad",
        follow: bool = False,
        patience_seconds: float = 60.0,
        prefetch_bytes: int = 512 << 20,
    ) -> None:
        if tail not in get_args(Tail):
            raise InputError(f"tail is {tail!r}; it is one of {', '.join(get_args(Tail))}")
        if follow and tail == "drop":
            raise InputError("tail='drop' needs to know the end, which follow=True does not")
        store = Store.open(path)
        if follow:
            require_local(store.location, "follow=True reads")
        self.reader = BatchReader(
            path=store.location.absolute(),
            store_id=store.spec.store,
            slots=tuple(aux_slots(store, layers)),
            dtype=torch_dtype(store) if dtype is None else check_dtype(dtype),
            cutting=Cutting(batch_size, pack_rows, max_length),
        )
        self.tail = tail
        self.prefetch_bytes = prefetch_bytes
        self._shuffle = Shuffle(seed, 0, buffer_samples) if shuffle else None
        self.follows, self._patience_seconds = follow, patience_seconds
        self._rank, self._ranks = _rank_of_process(rank, ranks)
        self._choose(of_split(store, split) & (follow or completeness(store)[0]))
        # In shared memory: worker processes that persist learn from it of a new epoch.
        self._position = torch.zeros(2, dtype=torch.int64)
        self._position.share_memory_()  # type: ignore[no-untyped-call]
        self._taken = self._resumed = 0
        self._ended = False

    def _choose(self, chosen: Bools) -> None:
        self._samples = encode_samples(chosen)
        self._table: Table | None = None
        self._plan: tuple[int, EpochPlan] | None = None

    # --- what there is ------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration goes through."""
        return int(self._position[0])

    @property
    def start(self) -> int:
        """Batches of it, of all ranks together, that this iteration leaves out: dealt before."""
        return int(self._position[1])

    @property
    def _next_start(self) -> int:
        """The same for the next iteration; workers leave the common position to the training process."""
        return 0 if self._ended and get_worker_info() is None else self.start

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch. Another one begins at its beginning; the same one stays where it is."""
        if epoch != self.epoch:
            self._position.copy_(torch.tensor([epoch, 0]))
            self._taken = self._resumed = 0
            self._ended = False

    def __len__(self) -> int:
        """Count the steps that this rank makes in the next iteration."""
        if self.follows:
            raise TypeError("a stream that follows a run has no length")
        return steps(len(self.plan()), self._next_start, self._share(), self.tail)

    def table(self) -> Table:
        """Return the samples, ascending; planned when it is first asked for."""
        if self._table is None:
            store = self.reader.open()
            chosen = decode_samples(self._samples, len(store))
            self._table = Table.of(store, chosen, self.reader.cutting)
        return self._table

    def plan(self) -> EpochPlan:
        """Return all batches of the epoch, of all ranks."""
        if self._plan is None or self._plan[0] != self.epoch:
            shuffle = self._shuffle and Shuffle(
                self._shuffle.seed, self.epoch, self._shuffle.buffer_samples
            )
            plan = self.table().plan(self.reader.cutting, shuffle, by_block=self.follows)
            self._plan = (self.epoch, plan)
        return self._plan[1]

    def repeated_samples(self) -> list[int]:
        """Return the samples that are served twice in the next iteration, to any rank."""
        if self.follows:
            return []
        plan, table = self.plan(), self.table()
        twice = repeats(len(plan), self._next_start, self._ranks, self.tail)
        return [int(table.sample[i]) for number in twice for i in plan.batch(number)]

    def largest_batch_bytes(self) -> int:
        """Bytes of the largest batch."""
        return max(self._batch_bytes(self.plan()))

    def _batch_bytes(self, plan: EpochPlan) -> list[int]:
        row_bytes = self.reader.widths.row_bytes
        return [rows * row_bytes for rows in self.table().batch_rows(plan, self.reader.cutting)]

    # --- iteration ----------------------------------------------------------------------------

    @override
    def __iter__(self) -> Iterator[Eagle3Batch]:
        """Read the batches of this rank and worker."""
        read, tasks = self.reader.read, self.tasks()
        if self.follows or get_worker_info() is not None:  # a batch must not wait for the next one
            return self.counted(read(samples) for _, samples in tasks)
        return self.counted(on_threads(tasks, read, self.prefetch_bytes))

    def tasks(self) -> Iterator[Task]:
        """Begin an iteration: return what is to be read in it, in order. See `counted`."""
        self.begin()
        return self._tasks(self._share(), self.start, self._taken)

    def begin(self) -> None:
        """Begin an iteration: at the beginning of the epoch again, if the last came to its end."""
        self._position[1] = self._next_start
        self._ended = False
        self._taken, self._resumed = self._resumed, 0

    def _tasks(self, share: Share, start: int, taken: int) -> Iterator[Task]:
        plan, table = self.plan(), self.table()
        nbytes = self._batch_bytes(plan)
        self._report(share)
        if self.follows:
            store = self.reader.open()
            watch = RunWatch(store, self._patience_seconds)
            batches = [table.sample[plan.batch(number)].tolist() for number in range(len(plan))]
            for number, samples in follow(store, batches, share, self.tail, watch):
                yield nbytes[number], samples
            return
        for number, _ in deal(len(plan), start, share, self.tail, taken=taken):
            yield nbytes[number], table.sample[plan.batch(number)].tolist()

    def _report(self, share: Share) -> None:
        if share.worker == share.rank == 0 and (cut := self._cut_to_a_line()):
            log.warning(
                "%d of %d samples are longer than a line and are cut to pack_rows=%d",
                cut, len(self.table().sample), self.reader.cutting.pack_rows,
            )  # fmt: skip
        if share.worker == 0 and (twice := self.repeated_samples()):
            log.info(
                "epoch %d: %d samples are served twice, so that all %d ranks make %d steps",
                self.epoch, len(twice), share.ranks, len(self),
            )  # fmt: skip

    def _cut_to_a_line(self) -> int:
        """Count the samples that are cut by nothing but `pack_rows`."""
        length = self.reader.open().length[self.table().sample]
        whole = replace(self.reader.cutting, pack_rows=None, batch_size=1).rows(length)
        return int((whole > self.table().rows).sum())

    def counted(self, batches: Iterable[Eagle3Batch]) -> Iterator[Eagle3Batch]:
        """Count batches, read from `tasks` in order, as they are handed over."""
        for batch in batches:
            self._taken += 1
            yield batch
        self._ended = True

    def _share(self) -> Share:
        worker = get_worker_info()
        if worker is None:
            return Share(self._rank, self._ranks)
        return Share(self._rank, self._ranks, worker.id, worker.num_workers)

    # --- state --------------------------------------------------------------------------------

    def state_dict(self) -> StreamState:
        """Return where the iteration stands: after the batches that were handed over.

        In a worker process of torchdata's `StatefulDataLoader`: where this worker stands.
        """
        if get_worker_info() is None:
            return self.state_after(self._taken)
        return {**self.state_after(0), "taken": self._taken}

    def state_after(self, steps_made: int) -> StreamState:
        """Return the state after so many steps of this rank, since the last iteration began.

        It fits any number of ranks and workers.
        """
        if self.follows:
            raise InputError("a stream that follows a run has no state")
        return {
            "order": self._order(),
            "samples": self._samples,
            "epoch": self.epoch,
            "start": self.start + steps_made * self._ranks,
            "taken": 0,
            "share": _numbers(self._share()),
        }

    def load_state_dict(self, state: StreamState) -> None:
        """Go on from a state: with the samples of then, whatever has become complete since.

        Raises
        ------
        InputError
            It is of another store, or of a stream with other options.
        """
        check_state(state, self._order(), _numbers(self._share()))
        if state["samples"] != self._samples:
            self._choose(decode_samples(state["samples"], len(self.reader.open())))
        self._position.copy_(torch.tensor([state["epoch"], state["start"]]))
        self._taken = self._resumed = state["taken"]
        self._ended = False

    def _order(self) -> Order:
        cutting, shuffle = self.reader.cutting, self._shuffle or Shuffle()
        return {
            "store": self.reader.store_id,
            "batch_size": cutting.batch_size,
            "pack_rows": cutting.pack_rows,
            "max_length": cutting.max_length,
            "shuffle": self._shuffle is not None,
            "seed": shuffle.seed,
            "buffer_samples": shuffle.buffer_samples,
        }

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Pickle the choice of samples, not the plan that follows from it."""
        return {**self.__dict__, "_table": None, "_plan": None}


def _rank_of_process(rank: int | None, ranks: int | None) -> tuple[int, int]:
    if (rank is None) != (ranks is None):
        raise InputError("give both rank and ranks, or neither")
    if rank is not None and ranks is not None:
        share = Share(rank, ranks)
        return share.rank, share.ranks
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _numbers(share: Share) -> tuple[int, int, int, int]:
    return share.rank, share.ranks, share.worker, share.workers

"""The blocks of a store as Dask tasks: each reads its own shard, one sample at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from dask.base import tokenize
from dask.delayed import delayed

from hsstore.views.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from dask.delayed import Delayed

    from hsstore.store import Sample, Store


@dataclass(frozen=True, slots=True, eq=False)
class SampleBlock:
    """Samples of one block; each is read when an iteration comes to it.

    Attributes
    ----------
    block : int
        Number of the block in the store's layout.
    samples : int64 (n,)
        Indices of its samples that were complete when the view was made, ascending; at least one.
    """

    source: Source
    block: int
    samples: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        """Read one sample after the other.

        Raises
        ------
        InputError
            The store cannot be seen from here.
        NotExtractedError
            A sample was taken back since.
        CorruptStoreError
        """
        store = self.source.open()
        for sample in self.samples.tolist():
            yield store[sample]

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Name equal blocks equally."""
        return (self.source.path, self.source.uuid, self.block, self.samples.tobytes())


def to_delayed(store: Store) -> list[Delayed]:
    """Return one Dask task for each block that has complete samples, in the order of the store.

    The value of a task is a `SampleBlock`: it holds no states, and reads one sample after the other when
    it is iterated over, in the task that does so. So a task's memory is that of one sample, and no two
    tasks read the same shard.
    """
    complete = store.completion().complete
    source = Source.of(store)
    found = []
    for index in range(store.layout.blocks):
        first, stop = store.layout.block_sample[index : index + 2].tolist()
        samples = first + np.flatnonzero(complete[first:stop])
        if samples.size:
            block = SampleBlock(source, index, samples)
            name = f"hsstore-block-{index}-{tokenize(block)}"
            found.append(delayed(block, name=name, traverse=False))
    return found

"""A torch `DataLoader` for a stream: bounded in bytes, resumable onto any number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from typing_extensions import override

from hsstore.errors import InputError
from hsstore.loaders.alignment import Eagle3Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hsstore.loaders.state import StreamState
    from hsstore.loaders.stream import Eagle3Stream

MAX_PREFETCH_FACTOR = 8
"""Of small batches: each takes a file descriptor a tensor on its way."""


class StreamLoader(DataLoader[Eagle3Batch]):
    """A `DataLoader` whose state counts what it has handed over, not what its workers have read.

    Without workers the stream reads ahead in threads, which is fastest where the training leaves the
    interpreter alone: decoding does not need it.

    Parameters
    ----------
    num_workers : int
        Processes that read batches in turns; each decodes on all cores that it may use.
    prefetch_bytes : int, optional
        Of batches that are read ahead, in all workers; by default as the stream says.
    **options
        Of `DataLoader`: `pin_memory`, `persistent_workers`, `multiprocessing_context` and so on.

    Raises
    ------
    InputError
        Not even one batch for each worker fits into `prefetch_bytes`.
    """

    def __init__(
        self,
        stream: Eagle3Stream,
        *,
        num_workers: int = 0,
        prefetch_bytes: int | None = None,
        **options: Any,  # noqa: ANN401  # those of DataLoader
    ) -> None:
        self.stream = stream
        if prefetch_bytes is not None:
            stream.prefetch_bytes = prefetch_bytes
        if num_workers:
            options["prefetch_factor"] = _prefetch_factor(stream, num_workers)
        super().__init__(stream, batch_size=None, num_workers=num_workers, **options)

    @override
    def __iter__(self) -> Iterator[Eagle3Batch]:  # type: ignore[override]  # torch names its own class
        """Begin an epoch, or go on with one whose state was loaded."""
        if not self.num_workers:
            return super().__iter__()
        self.stream.begin()
        return self.stream.counted(super().__iter__())

    @override
    def __len__(self) -> int:
        """Count the steps of the next iteration."""
        return len(self.stream)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; see `Eagle3Stream.set_epoch`."""
        self.stream.set_epoch(epoch)

    def state_dict(self) -> StreamState:
        """Return where the training stands: it fits any number of ranks and workers."""
        return self.stream.state_dict()

    def load_state_dict(self, state: StreamState) -> None:
        """Go on from a state in the next iteration, with new workers."""
        self.stream.load_state_dict(state)
        self._iterator = None


def _prefetch_factor(stream: Eagle3Stream, num_workers: int) -> int:
    """Return how many batches each worker may read ahead."""
    largest = stream.largest_batch_bytes()
    factor = stream.prefetch_bytes // (num_workers * largest)
    if not factor:
        raise InputError(
            f"{num_workers} workers hold a batch each, of up to {largest:,} bytes, but "
            f"prefetch_bytes is {stream.prefetch_bytes:,}: raise it, or take fewer workers or "
            "smaller batches"
        )
    return min(factor, MAX_PREFETCH_FACTOR)

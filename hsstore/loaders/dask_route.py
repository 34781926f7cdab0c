"""Batches that a Dask cluster computes, fed to the training in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import torch

from hsstore.errors import InputError
from hsstore.loaders.prefetch import in_order
from hsstore.loaders.stream import Eagle3Stream
from hsstore.loaders.tensors import bits_of
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from distributed import Client
    from typing_extensions import Unpack

    from hsstore.loaders.alignment import Eagle3Batch
    from hsstore.loaders.order import Tail
    from hsstore.loaders.prefetch import Pending
    from hsstore.loaders.reading import BatchReader
    from hsstore.location import Location

STATES = ("aux_states", "target_states")


class StreamOptions(TypedDict, total=False):
    """Those of `Eagle3Stream` that make sense here."""

    batch_size: int | None
    pack_rows: int | None
    max_length: int | None
    layers: Sequence[int] | None
    dtype: torch.dtype | None
    split: str | None
    shuffle: bool
    seed: int
    buffer_samples: int
    rank: int | None
    ranks: int | None
    tail: Tail


def dask_batches(
    store: Store | str | Location | Eagle3Stream,
    client: Client,
    *,
    prefetch_bytes: int = 1 << 30,
    **options: Unpack[StreamOptions],
) -> Iterator[Eagle3Batch]:
    """Yield the batches of an `Eagle3Stream`, tensor by tensor the same, read and decoded on a cluster.

    For a training whose own machine has no cores, or no way to the store, to spare. The workers need
    hsstore with torch, and the store under the same path.

    Parameters
    ----------
    store : Store, path, URL or Eagle3Stream
        A stream brings its options, its epoch and its position; its `state_dict` then follows what
        is handed over here.
    client : distributed.Client
    prefetch_bytes : int
        Of batches that were asked for and not handed over yet, wherever they are.
    **options
        Of `Eagle3Stream`, unless one is given.

    Raises
    ------
    InputError
        As `Eagle3Stream`; or a worker has another store under this path, or none.
    """
    stream = _as_stream(store, options)
    if stream.follows:
        raise InputError("dask_batches does not follow a run: use the stream itself")

    def submit(samples: list[int]) -> Pending:
        future: Pending = client.submit(read_bits, stream.reader, samples, pure=False)
        return future

    results = in_order(stream.tasks(), submit, prefetch_bytes)
    dtype = stream.reader.dtype
    return stream.counted(_as_tensors(arrays, dtype) for arrays in results)


def _as_stream(
    store: Store | str | Location | Eagle3Stream, options: StreamOptions
) -> Eagle3Stream:
    if not isinstance(store, Eagle3Stream):
        return Eagle3Stream(store.location if isinstance(store, Store) else store, **options)
    if options:
        raise InputError(f"the stream has its options: leave {', '.join(options)} away")
    return store


def read_bits(reader: BatchReader, samples: list[int]) -> dict[str, npt.NDArray[Any]]:
    """Read a batch on a worker, as arrays: Dask has no bfloat16 tensors."""
    batch = reader.read(samples)
    return {
        name: bits_of(tensor) if name in STATES else tensor.numpy()
        for name, tensor in batch.items()
        if isinstance(tensor, torch.Tensor)
    }


def _as_tensors(arrays: dict[str, npt.NDArray[Any]], dtype: torch.dtype) -> Eagle3Batch:
    tensors = {name: torch.from_numpy(_writable(array)) for name, array in arrays.items()}
    for name in STATES:
        tensors[name] = tensors[name].view(dtype)
    return tensors  # type: ignore[return-value]  # the keys are those of a batch


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array if array.flags.writeable else array.copy()

"""Read the plan of chosen samples out of their sources: each source once, from its begin to its end.

Memory is that of a window of rows; tokens and masks of many samples lie in files without a name in
TMPDIR, as they do when a store is created from files.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from hsstore.dataset import MAX_SPLITS, SPILL_BYTES, TokenizedDataset
from hsstore.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from hsstore.consolidate.choose import Samples
    from hsstore.consolidate.sources import Source

    Int64s = npt.NDArray[np.int64]

WINDOW_ELEMENTS = 1 << 20
"""Read at once; a longer sample is read as a whole."""


def gather_dataset(sources: Sequence[Source], samples: Samples) -> TokenizedDataset:
    """Collect everything but the states, in the order of `samples`.

    Raises
    ------
    CorruptStoreError
        A chunk of a source's plan is damaged.
    InputError
        The sources have too many splits together.
    OutputError
        TMPDIR has no room.
    """
    token_end = np.cumsum(samples.length)
    tokens = int(token_end[-1])
    input_ids = _allocate(tokens, np.int32)
    loss_mask = _allocate(tokens, np.uint8)
    metadata_bytes = _of_samples(sources, samples, _metadata_bytes)
    metadata_end = np.cumsum(metadata_bytes)
    metadata = _allocate(int(metadata_end[-1]), np.uint8)
    for source in sources:
        places, mine = _places(samples, source)
        row_start = source.store.plan_array("row_start")[mine]
        target = token_end[places] - samples.length[places]
        for name, out in (("input_ids", input_ids), ("loss_mask", loss_mask)):
            _scatter(source, name, row_start, samples.length[places], target, out)
        start = _metadata_start(source)[mine]
        size = metadata_bytes[places]
        _scatter(source, "metadata", start, size, metadata_end[places] - size, metadata)
    split, split_names = split_numbers(sources, samples)
    return TokenizedDataset(
        length=samples.length,
        input_ids=input_ids,
        loss_mask=loss_mask,
        sample_id=_pack(samples.ids),
        split=split,
        split_names=split_names,
        metadata=metadata,
        metadata_end=metadata_end,
    )


def split_numbers(
    sources: Sequence[Source], samples: Samples
) -> tuple[npt.NDArray[np.uint8], tuple[str, ...]]:
    """Give the splits of all sources new numbers, by their first sample.

    Returns
    -------
    split : uint8 (k,)
    names : tuple

    Raises
    ------
    InputError
        There are too many.
    """
    known = {name: 0 for source in sources for name in source.store.spec.dataset.split_names}
    numbers = {name: number for number, name in enumerate(known)}

    def numbered(source: Source) -> Int64s:
        here = np.array([numbers[name] for name in source.store.spec.dataset.split_names])
        return np.asarray(here[source.store.plan_array("split")])

    everywhere = _of_samples(sources, samples, numbered)
    used, first = np.unique(everywhere, return_index=True)
    used = used[np.argsort(first)]
    if len(used) > MAX_SPLITS:
        raise InputError(f"the sources have {len(used)} splits; at most {MAX_SPLITS} are possible")
    final = np.zeros(len(known), np.uint8)
    final[used] = np.arange(len(used))
    names = list(known)
    return final[everywhere], tuple(names[number] for number in used.tolist())


def hash_contents(sources: Sequence[Source], samples: Samples) -> npt.NDArray[np.uint64]:
    """Hash tokens and loss mask of each sample, shape (k,): equal samples have equal hashes."""
    hashes = np.zeros(len(samples), np.uint64)
    for source in sources:
        places, mine = _places(samples, source)
        row_start, length = source.store.plan_array("row_start")[mine], samples.length[places]
        for part, first, stop in _windows(row_start, length):
            tokens, mask = (
                source.store.plan_array(name, slice(first, stop))
                for name in ("input_ids", "loss_mask")
            )
            for place, start, count in zip(
                places[part], row_start[part] - first, length[part], strict=True
            ):
                state = xxhash.xxh3_64(tokens[start : start + count].tobytes())
                state.update(mask[start : start + count].tobytes())
                hashes[place] = state.intdigest()
    return hashes


def _of_samples(
    sources: Sequence[Source], samples: Samples, values: Callable[[Source], npt.NDArray[Any]]
) -> Int64s:
    """Look up a number of each sample, given those of all samples of a source."""
    found = np.zeros(len(samples), np.int64)
    for source in sources:
        places, mine = _places(samples, source)
        found[places] = values(source)[mine]
    return found


def _metadata_start(source: Source) -> Int64s:
    return np.concatenate([[0], source.store.plan_array("metadata_end")[:-1]])


def _metadata_bytes(source: Source) -> Int64s:
    return np.diff(source.store.plan_array("metadata_end"), prepend=0)


def _places(samples: Samples, source: Source) -> tuple[Int64s, Int64s]:
    """Return which samples are of a source, and their indices there, ascending."""
    places = np.flatnonzero(samples.source == source.number)
    places = places[np.argsort(samples.sample[places])]
    return places, samples.sample[places]


def _scatter(
    source: Source,
    name: str,
    start: Int64s,
    count: Int64s,
    target: Int64s,
    out: npt.NDArray[Any],
) -> None:
    """Copy pieces of an array of a source to where they belong.

    Parameters
    ----------
    start, count : int64 (k,)
        The pieces, ascending.
    target : int64 (k,)
        First place in `out` of each.
    """
    for part, first, stop in _windows(start, count):
        sizes = count[part]
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        window = source.store.plan_array(name, slice(first, stop))
        out[np.repeat(target[part], sizes) + within] = window[
            np.repeat(start[part] - first, sizes) + within
        ]


def _windows(start: Int64s, count: Int64s) -> Iterator[tuple[slice, int, int]]:
    """Cut ascending pieces into windows that are read at once: (which pieces, first, stop)."""
    stop = start + count
    position = 0
    while position < len(start):
        first = int(start[position])
        end = int(np.searchsorted(stop, first + WINDOW_ELEMENTS, side="right"))
        part = slice(position, max(end, position + 1))
        yield part, first, int(stop[part.stop - 1])
        position = part.stop


def _allocate(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros, in memory or in a file whose room is taken now."""
    size = count * np.dtype(dtype).itemsize
    if size < SPILL_BYTES:
        return np.zeros(count, dtype)
    try:
        with tempfile.TemporaryFile() as file:  # what is mapped stays when it is closed
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, mode="r+", shape=(count,))
    except OSError as error:
        raise OutputError(
            f"the sources' tokens need {size / 1e9:.2f} GB in {tempfile.gettempdir()}: "
            f"{error.strerror}; free space there, or name another directory in TMPDIR"
        ) from error


def _pack(ids: npt.NDArray[np.bytes_]) -> npt.NDArray[np.uint8]:
    """Return ids as bytes, (k, width), no wider than the longest one."""
    packed = ids.view(np.uint8).reshape(len(ids), -1)
    width = int(np.flatnonzero(packed.any(axis=0))[-1]) + 1
    return np.ascontiguousarray(packed[:, :width])

"""Decide what the destination holds: filter, duplicates, order, sizes. Reads plans, writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.codec import CODEC_NAMES, DEFAULT_CODEC, codec_metadata
from hsstore.consolidate.choose import Samples, first_with_id, in_order, unknown_ids
from hsstore.consolidate.gather import hash_contents, split_numbers
from hsstore.create import LayoutOptions
from hsstore.errors import InputError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hsstore.codec import CodecName
    from hsstore.consolidate.request import Filter, Request
    from hsstore.consolidate.sources import Source
    from hsstore.spec import StoreSpec

NAMED = 3
"""Ids that an error message names."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The samples of the destination, in its order, and what was left out."""

    samples: Samples
    duplicates: int
    """Samples left out because an earlier source has the same."""
    conflicts: int
    """Of these, the ones that differ from what was taken."""
    notes: tuple[str, ...]


def choose_samples(sources: Sequence[Source], wanted: Filter, request: Request) -> Chosen:
    """Choose the complete samples that are wanted, each id once, and put them in order.

    Raises
    ------
    InputError
        The filter names what no source has, or nothing is left.
    RefusedError
        Samples share an id and differ.
    """
    notes = _check_filter(sources, wanted)
    samples = _candidates(sources, wanted)
    if not len(samples):
        raise InputError("no complete sample of the sources is wanted: there is nothing to write")
    duplicates = conflicts = 0
    if len(sources) > 1:
        first = first_with_id(samples.ids)
        extra = np.flatnonzero(first != np.arange(len(samples)))
        duplicates = len(extra)
        conflicts = _check_duplicates(sources, samples, extra, first[extra], request)
        samples = samples.take(np.delete(np.arange(len(samples)), extra))
    samples = samples.take(in_order(samples, _datasets(sources), request.order, request.seed))
    return Chosen(samples, duplicates, conflicts, tuple(notes))


def _check_filter(sources: Sequence[Source], wanted: Filter) -> list[str]:
    splits = {name for source in sources for name in source.store.spec.dataset.split_names}
    if missing := sorted((wanted.splits or frozenset()) - splits):
        raise InputError(
            f"no source has a split {missing[0]!r}; there are {', '.join(sorted(splits))}"
        )
    if wanted.ids is None:
        return []
    everything = [source.ids(np.arange(len(source.store))) for source in sources]
    if unknown := unknown_ids(wanted.ids, everything):
        names = ", ".join(repr(one.decode(errors="replace")) for one in unknown[:NAMED])
        raise InputError(
            f"{len(unknown):,} of {len(wanted.ids):,} wanted ids are in no source, such as {names}"
        )
    complete = [source.ids(np.flatnonzero(source.complete)) for source in sources]
    pending = unknown_ids(wanted.ids, complete)
    return [f"{len(pending):,} of the wanted ids are not complete in any source"] if pending else []


def _candidates(sources: Sequence[Source], wanted: Filter) -> Samples:
    parts = [_candidates_of(source, wanted) for source in sources]
    return Samples(
        np.concatenate([part.source for part in parts]),
        np.concatenate([part.sample for part in parts]),
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.digest for part in parts]),
        np.concatenate([part.length for part in parts]),
    )


def _candidates_of(source: Source, wanted: Filter) -> Samples:
    take = source.complete.copy()
    if wanted.splits is not None:
        names = source.store.spec.dataset.split_names
        numbers = [number for number, name in enumerate(names) if name in wanted.splits]
        take &= np.isin(source.store.plan_array("split"), numbers)
    sample = np.flatnonzero(take)
    if wanted.ids is not None:
        ids = source.ids(sample)
        sample = sample[np.isin(ids, np.array(sorted(wanted.ids), dtype=np.bytes_))]
    return Samples(
        np.full(len(sample), source.number, np.uint16),
        sample,
        source.ids(sample),
        source.digest[sample],
        source.store.length[sample].astype(np.int64),
    )


def _datasets(sources: Sequence[Source]) -> npt.NDArray[np.uint16]:
    """Return, for each source, the first one that was made from the same dataset."""
    fingerprints = [source.store.spec.dataset.fingerprint for source in sources]
    return np.array([fingerprints.index(one) for one in fingerprints], np.uint16)


def _check_duplicates(
    sources: Sequence[Source],
    samples: Samples,
    extra: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    request: Request,
) -> int:
    """Count the samples that differ from the first one with their id; refuse them, if it is so wished."""
    both = samples.take(np.concatenate([first, extra]))
    contents, (split, _) = hash_contents(sources, both), split_numbers(sources, both)
    fields: dict[str, npt.NDArray[Any]] = {
        "tokens or loss mask": contents,
        "split": split,
        "states": both.digest,
    }
    half = len(extra)
    unequal = {name: values[:half] != values[half:] for name, values in fields.items()}
    conflict = np.flatnonzero(np.logical_or.reduce(list(unequal.values())))
    if len(conflict) and request.on_conflict == "refuse":
        place = int(conflict[0])
        what = next(name for name, differ in unequal.items() if differ[place])
        raise RefusedError(
            f"{len(conflict):,} samples have the same id as another one and differ: "
            f"{samples.ids[extra[place]].decode()!r} is {_where(sources, samples, first[place])} and "
            f"{_where(sources, samples, extra[place])}, which differ in {what}; "
            "--on-conflict first takes those of the source that is named first"
        )
    return len(conflict)


def _where(sources: Sequence[Source], samples: Samples, place: np.int64) -> str:
    return f"sample {samples.sample[place]} of {sources[int(samples.source[place])].path}"


def layout_options(sources: Sequence[Source], request: Request) -> LayoutOptions:
    """Choose codec and sizes: as in the sources where that lets their chunks and shards stay as they are."""
    first = sources[0].store.spec
    specs = [source.store.spec for source in sources]
    parts = all(
        spec.layout == first.layout and spec.dataset.fingerprint == first.dataset.fingerprint
        for spec in specs
    )
    return LayoutOptions(
        chunk_rows=request.chunk_rows or first.layout.chunk_rows,
        shard_rows=request.shard_rows or (first.layout.shard_rows if parts else None),
        span_samples=request.span_samples or (first.layout.span_samples if parts else None),
        codec=request.codec or _codec_name(first),
    )


def _codec_name(spec: StoreSpec) -> CodecName:
    """Name the codec of a store; that of another writer may have no name, and is not kept."""
    for name in CODEC_NAMES:
        if codec_metadata(name, spec.geometry.itemsize) == spec.codec:
            return name
    return DEFAULT_CODEC

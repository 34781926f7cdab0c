"""Stores and parts of stores into one store: choose, create, write block by block on Dask, prove.

What is chosen is recorded in the destination before it has its name, so a run that was killed goes on with
the same choice. The sources are only read.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hsstore.claims import Claims
from hsstore.codec import codec_metadata
from hsstore.consolidate import provenance
from hsstore.consolidate.gather import gather_dataset
from hsstore.consolidate.outcome import Outcome, nearest
from hsstore.consolidate.plan import choose_samples, layout_options
from hsstore.consolidate.request import Filter, Request, hash_ids
from hsstore.consolidate.run import Run
from hsstore.consolidate.schedule import Target, plan_bytes, stored_bytes, unchanged_blocks
from hsstore.consolidate.sources import open_sources
from hsstore.create import create_store, layout_for
from hsstore.errors import InputError, RefusedError
from hsstore.location import RemotePath
from hsstore.stage import stage_for
from hsstore.store import Store
from hsstore.tasks import Where, no_bars

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hsstore.codec import CodecName
    from hsstore.consolidate.provenance import Recorded
    from hsstore.consolidate.request import Linking, OnConflict, Order
    from hsstore.consolidate.sources import Source
    from hsstore.location import Location
    from hsstore.report import Consolidation
    from hsstore.tasks import Bars


@dataclass(frozen=True, slots=True)
class Options:
    """How stores are merged; None means as the first source has it, or by size."""

    order: Order = "dataset"
    seed: int = 0
    filter: Filter = field(default_factory=Filter)
    on_conflict: OnConflict = "refuse"
    codec: CodecName | None = None
    chunk_rows: int | None = None
    shard_rows: int | None = None
    span_samples: int | None = None
    linking: Linking = "auto"
    verify: bool = True
    dry_run: bool = False
    take_over: bool = False
    where: Where = field(default_factory=Where)

    def request(self, sources: Sequence[Source]) -> Request:
        """Return what of this the destination records."""
        wanted = self.filter
        return Request(
            sources=tuple(source.store.spec.store for source in sources),
            order=self.order,
            seed=self.seed,
            splits=tuple(sorted(wanted.splits)) if wanted.splits else None,
            ids=hash_ids(wanted.ids),
            on_conflict=self.on_conflict,
            codec=self.codec,
            chunk_rows=self.chunk_rows,
            shard_rows=self.shard_rows,
            span_samples=self.span_samples,
        )


def consolidate(
    paths: Sequence[Location],
    destination: Location,
    options: Options | None = None,
    *,
    bars: Bars = no_bars,
) -> Consolidation:
    """Write the complete samples of stores into one new store, or go on doing so.

    Memory is that of a few chunks for each worker, and of the plans' arrays.

    Parameters
    ----------
    bars : callable, optional
        Shows progress; `hsstore.cli.progress.progress_bar` does.

    Raises
    ------
    InputError
        A source is not there, or nothing is to be written; or an object store refuses.
    RefusedError
        The sources do not belong together, samples with one id differ, the destination is of another
        command or is being written, or its disk is too small.
    OutputError
        The destination cannot be written. What is committed stays; the same command goes on.
    UnreachableError
        An object store does not answer; the same command goes on.
    """
    options = options or Options()
    destination = destination.resolve()  # workers of a cluster are in another directory
    sources = open_sources(paths, destination)
    request = options.request(sources)
    outcome = Outcome(destination, sources, dry_run=options.dry_run)
    if not _exists(destination):
        recorded = _begin(sources, request, options, outcome)
        if recorded is None:
            return outcome.report(None)
    else:
        recorded = _recorded(destination, request)
        outcome.resumed = True
    store = Store.open(destination)
    target = Target(
        store.layout,
        store.spec.codec,
        store.length.astype(np.int64),
        recorded.source,
        recorded.sample,
    )
    outcome.count_taken(target.source)
    complete = store.completion().complete
    pending = np.logical_or.reduceat(~complete, store.layout.block_sample[:-1])
    _check_space(target, pending, options, outcome, 0)
    if options.dry_run:
        return outcome.report(store)
    with Claims(store, str(uuid.uuid4()), take_over=options.take_over) as claims:
        claims.take(range(store.layout.spans))
        run = Run(store, target, recorded, claims, outcome, bars)
        run.write(options.where, options.linking)
        if options.verify:
            run.verify(options.where)
    return outcome.report(store)


def _begin(
    sources: Sequence[Source], request: Request, options: Options, outcome: Outcome
) -> Recorded | None:
    """Choose the samples and create the destination; nothing is created for a dry run."""
    chosen = choose_samples(sources, options.filter, request)
    samples, model = chosen.samples, sources[0].store.spec.model
    golden, notes = provenance.golden_of(sources)
    outcome.duplicates, outcome.conflicts = chosen.duplicates, chosen.conflicts
    outcome.notes += [*chosen.notes, *notes]
    outcome.count_taken(samples.source)
    sizes = layout_options(sources, request)
    layout = layout_for(samples.length, model, sizes)
    codec = codec_metadata(sizes.codec, layout.geometry.itemsize)
    target = Target(layout, codec, samples.length, samples.source, samples.sample)
    metadata = sum(int(source.store.plan_array("metadata_end")[-1]) for source in sources)
    plan = plan_bytes(target, samples.ids.itemsize, metadata)
    _check_space(target, np.ones(layout.blocks, np.bool_), options, outcome, plan)
    if options.dry_run:
        return None
    with stage_for(outcome.path) as stage:
        store = create_store(
            outcome.path,
            gather_dataset(sources, samples),
            model,
            norm_weight=sources[0].store.plan_array("norm_weight"),
            tokenizer_hash=sources[0].store.spec.dataset.tokenizer_hash,
            options=sizes,
            golden=golden,
            finish=partial(
                provenance.write,
                record=provenance.begin_record(request, sources, samples),
                samples=samples,
            ),
            stage=stage,
        )
    return _recorded(store.location, request)  # somebody else may have been first


def _recorded(destination: Location, request: Request) -> Recorded:
    """Read what the destination was made from.

    Raises
    ------
    RefusedError
        By another command, or by none.
    """
    try:
        store = Store.open(destination)
    except InputError as error:
        raise RefusedError(f"{error}; name a destination that does not exist") from None
    recorded = provenance.read(store)
    request.refuse_other(recorded.request)
    return recorded


def _check_space(
    target: Target, blocks: npt.NDArray[np.bool_], options: Options, outcome: Outcome, more: int
) -> None:
    """Foresee how much is to be written for some blocks, and refuse what has no room.

    Raises
    ------
    RefusedError
    """
    unchanged = unchanged_blocks(target, outcome.sources)
    shares = np.array(
        [options.linking == "auto" and _on_one_disk(one, outcome.path) for one in outcome.sources]
    )
    first = target.layout.block_sample[:-1]
    linked = blocks & unchanged & shares[target.source[first]]
    size = stored_bytes(target, outcome.sources)
    outcome.foresee(target, blocks, linked, int(size[blocks & ~linked].sum()) + more)


def _exists(destination: Location) -> bool:
    if isinstance(destination, Path):
        return os.path.lexists(destination)
    from hsstore.birth import is_born  # noqa: PLC0415  # brings fsspec

    return is_born(destination)


def _on_one_disk(source: Source, destination: Location) -> bool:
    if isinstance(source.path, RemotePath) or isinstance(destination, RemotePath):
        return False
    return source.path.stat().st_dev == nearest(destination).stat().st_dev

"""Fill the destination: tasks on Dask, commits by this process, and the proof in the end.

Workers write shards under names of their own. Only this process publishes them and sets bits, through
`Store.commit`, so what a lost worker leaves has no name and no meaning.
"""

from __future__ import annotations

from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hsstore.consolidate import provenance
from hsstore.consolidate.block import write_block
from hsstore.consolidate.schedule import Tasks, unchanged_blocks
from hsstore.consolidate.task import StoreRef, Unusable
from hsstore.errors import HsstoreError, RefusedError
from hsstore.files import PARTIAL_SUFFIX
from hsstore.location import RemotePath
from hsstore.report import BadKind
from hsstore.spec import FINISHED
from hsstore.tasks import run_tasks
from hsstore.verify import VerifyOptions, verify_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from hsstore.claims import Claims
    from hsstore.consolidate.outcome import Outcome
    from hsstore.consolidate.provenance import Recorded
    from hsstore.consolidate.request import Linking
    from hsstore.consolidate.schedule import Target
    from hsstore.consolidate.sources import Source
    from hsstore.consolidate.task import BlockResult
    from hsstore.store import Store
    from hsstore.tasks import Bars, Where

_NOT_AS_PROMISED = frozenset(
    {
        BadKind.MISSING_SHARD,
        BadKind.SHARD_INDEX,
        BadKind.MISSING_CHUNK,
        BadKind.CHUNK,
        BadKind.DIGEST,
    }
)
"""Findings after which a sample of the destination is pending again. Other kinds are the states' own: a
source that holds infinities was copied faithfully."""


class Run:
    """One run on a destination whose spans it has claimed."""

    def __init__(
        self,
        store: Store,
        target: Target,
        recorded: Recorded,
        claims: Claims,
        outcome: Outcome,
        bars: Bars,
    ) -> None:
        self._store = store
        self._target = target
        self._recorded = recorded
        self._claims = claims
        self._outcome = outcome
        self._bars = bars

    def write(self, where: Where, linking: Linking) -> None:
        """Write every block that lacks a sample, and take back what was withdrawn in a source meanwhile."""
        complete = self._store.completion().complete
        lacking = np.logical_or.reduceat(~complete, self._target.layout.block_sample[:-1])
        if not lacking.any() and self._recorded.record.result == FINISHED:
            return
        # Until it ends the record is that of a run that may have died in the middle of a commit.
        record = provenance.open_record(self._store, self._recorded.record)
        try:
            self._write_blocks(self._tasks(np.flatnonzero(lacking), complete, linking), where)
        finally:
            self._remove_partials()
        why = "was taken back or redone in its source meanwhile"
        self._take_back(dict.fromkeys(self._withdrawn_in_sources().tolist(), why))
        provenance.end_record(self._store, record)

    def _tasks(
        self, blocks: npt.NDArray[np.int64], complete: npt.NDArray[np.bool_], linking: Linking
    ) -> Tasks:
        spec = self._store.spec
        sources = tuple(
            StoreRef(source.path, source.store.spec.store) for source in self._outcome.sources
        )
        return Tasks(
            self._target,
            blocks,
            unchanged=unchanged_blocks(self._target, self._outcome.sources),
            complete=complete,
            digest=self._recorded.digest,
            stores=(StoreRef(self._store.location, spec.store), sources),
            run=self._recorded.record.run,
            dtype=spec.model.dtype,
            linking=linking,
        )

    def _write_blocks(self, tasks: Tasks, where: Where) -> None:
        if not len(tasks):
            return
        stores = [self._store, *(source.store for source in self._outcome.sources)]
        files = [store.location / "zarr.json" for store in stores]
        results = run_tasks(write_block, tasks, where, files=files)
        with self._bars("blocks") as progress, closing(results):
            progress(0, len(tasks))
            for done, (_, result) in enumerate(results, 1):
                self._commit(result)
                self._outcome.add(result)
                progress(done, len(tasks))

    def _commit(self, result: BlockResult) -> None:
        if not result.digests:  # nothing new: the block stays as it is
            result.discard()
            return
        try:
            self._store.commit(result, {}, partial(self._claims.check, result.block.span))
        except RefusedError:  # to list what was sent may not be allowed
            result.discard()
            raise

    def _withdrawn_in_sources(self) -> npt.NDArray[np.int64]:
        """Return the samples of the destination that are no longer in their source what they were.

        A run that writes a source may take samples back: those of a server that computed wrong states.
        """
        gone = np.zeros(len(self._store), np.bool_)
        for source in self._outcome.sources:
            mine = np.flatnonzero(self._target.source == source.number)
            gone[mine] = self._is_gone(source, mine)
        here = self._store.completion()
        # What a run has extracted into the destination is not the source's business.
        taken = here.complete & (here.digest == self._recorded.digest)
        return np.flatnonzero(gone & taken)

    def _is_gone(self, source: Source, mine: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        now, there = source.store.completion(), self._target.sample[mine]
        same = now.complete[there] & (now.digest[there] == self._recorded.digest[mine])
        return np.asarray(~same)

    def verify(self, where: Where) -> None:
        """Read all of the destination; what is not as promised becomes pending."""
        with self._bars("blocks verified") as progress:
            report = verify_store(self._store.location, VerifyOptions(where), progress)
        self._outcome.verification = report
        bad = {
            one.sample: one.detail
            for one in report.bad
            if one.sample is not None and one.kind in _NOT_AS_PROMISED
        }
        self._take_back(bad)

    def _take_back(self, details: Mapping[int, str]) -> None:
        """Make complete samples pending again, and say why."""
        if details:
            self._store.withdraw(np.array(sorted(details)))
        for sample, detail in details.items():
            self._outcome.unusable[sample] = Unusable(sample, detail)

    def _remove_partials(self) -> None:
        """Remove what workers have left: of tasks that were done twice, or that nobody waits for."""
        if isinstance(self._store.location, RemotePath):
            from hsstore.shard.upload import abort_uploads  # noqa: PLC0415  # brings fsspec

            with suppress(HsstoreError):  # to list them may not be allowed: they are no objects
                abort_uploads(self._store.location, self._claims.has_shard)
            return
        run = self._recorded.record.run
        for path in self._store.path.glob(f"hidden_states/c.*.{run}-*{PARTIAL_SUFFIX}"):
            path.unlink(missing_ok=True)

"""What a consolidation has done so far, and the report on it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import RefusedError
from hsstore.info import disk_usage
from hsstore.location import RemotePath
from hsstore.report import Consolidation, ConsolidationSource, UnusableSample

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.consolidate.schedule import Target
    from hsstore.consolidate.sources import Source
    from hsstore.consolidate.task import BlockResult, Unusable
    from hsstore.location import Location
    from hsstore.report import Verification
    from hsstore.store import Store

GB = 1e9


@dataclass(slots=True)
class Outcome:
    """Counts, findings and notes of one run."""

    path: Location
    sources: Sequence[Source]
    dry_run: bool
    resumed: bool = False
    samples: int = 0
    taken: list[int] = field(default_factory=list)
    """Samples of the destination, by source."""
    duplicates: int = 0
    conflicts: int = 0
    shards: int = 0
    """Of the destination."""
    shards_unchanged: int = 0
    """Of those to write: foreseen to be linked."""
    bytes_raw: int = 0
    bytes_needed: int = 0
    bytes_free: int | None = None
    """None in an object store."""
    how: Counter[str] = field(default_factory=Counter)
    shards_linked: int = 0
    unusable: dict[int, Unusable] = field(default_factory=dict)
    """By sample of the destination."""
    notes: list[str] = field(default_factory=list)
    verification: Verification | None = None
    _source: npt.NDArray[np.uint16] = field(default_factory=lambda: np.zeros(0, np.uint16))

    def count_taken(self, source: npt.NDArray[np.uint16]) -> None:
        """Take note of where the samples come from; the source of each."""
        self._source = source
        self.samples = len(source)
        self.taken = np.bincount(source, minlength=len(self.sources)).tolist()

    def foresee(
        self,
        target: Target,
        blocks: npt.NDArray[np.bool_],
        linked: npt.NDArray[np.bool_],
        bytes_needed: int,
    ) -> None:
        """Take note of what is to be written.

        Raises
        ------
        RefusedError
            There is no room for it.
        """
        layout = target.layout
        self.shards = layout.shards
        self.shards_unchanged = int(np.diff(layout.block_shard)[blocks & linked].sum())
        self.bytes_raw = int(target.length.sum()) * layout.geometry.row_bytes
        self.bytes_needed = bytes_needed
        if isinstance(self.path, RemotePath):  # which has no end
            return
        self.bytes_free = _free_bytes(self.path)
        if bytes_needed > self.bytes_free:
            raise RefusedError(
                f"{self.path} needs about {bytes_needed / GB:,.2f} GB more, and {self.bytes_free / GB:,.2f} "
                "GB are free there; free space, or choose another destination"
            )

    def add(self, result: BlockResult) -> None:
        """Take note of a block that is done."""
        self.how.update(result.how.values())
        if "linked" in result.how.values():
            self.shards_linked += len(result.block.shards)
        self.unusable.update((one.sample, one) for one in result.unusable)

    def report(self, store: Store | None) -> Consolidation:
        """Sum it all up; without a store, as far as it is planned."""
        complete = int(store.completion().complete.sum()) if store else 0
        files, bytes_stored = disk_usage(self.path) if store else (0, 0)
        pending = self.samples - complete
        proven = self.verification is None or self.verification.ok
        return Consolidation(
            path=str(self.path),
            ok=self.dry_run or (proven and not pending and not self.unusable),
            dry_run=self.dry_run,
            resumed=self.resumed,
            samples=self.samples,
            complete=complete,
            pending=pending,
            duplicates=self.duplicates,
            conflicts=self.conflicts,
            sources=tuple(self._describe(source) for source in self.sources),
            samples_linked=self.how["linked"],
            samples_copied=self.how["copied"],
            samples_encoded=self.how["encoded"],
            shards=self.shards,
            shards_linked=self.shards_linked,
            shards_unchanged=self.shards_unchanged,
            unusable=tuple(self._name(one, store) for one in self.unusable.values()),
            bytes_raw=self.bytes_raw,
            bytes_stored=bytes_stored,
            files=files,
            ratio=self.bytes_raw / bytes_stored if bytes_stored and not pending else None,
            bytes_needed=self.bytes_needed,
            bytes_free=self.bytes_free,
            notes=tuple(self.notes),
            verification=self.verification,
        )

    def _describe(self, source: Source) -> ConsolidationSource:
        files, bytes_stored = disk_usage(source.path)
        return ConsolidationSource(
            path=str(source.path),
            store=source.store.spec.store,
            samples=len(source.store),
            complete=int(source.complete.sum()),
            taken=self.taken[source.number],
            files=files,
            bytes_stored=bytes_stored,
        )

    def _name(self, one: Unusable, store: Store | None) -> UnusableSample:
        return UnusableSample(
            sample=one.sample,
            sample_id=store.sample_id(one.sample) if store else "",
            source=str(self.sources[int(self._source[one.sample])].path),
            detail=one.detail,
        )


def nearest(path: Path) -> Path:
    """Return the path, or the directory above it that exists."""
    while not path.exists():
        path = path.parent
    return path


def _free_bytes(path: Path) -> int:
    status = os.statvfs(nearest(path))
    return status.f_bavail * status.f_frsize

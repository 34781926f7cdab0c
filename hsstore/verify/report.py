"""Turn what was found into the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hsstore.errors import CorruptStoreError
from hsstore.report import Bad, BadCount, BadKind, Sampling, Verification
from hsstore.verify.profile import coverage, lengths, slot_norms

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from hsstore.location import Location
    from hsstore.report import Note, Repair
    from hsstore.store import Store
    from hsstore.verify.completion import SpanState
    from hsstore.verify.finding import Count, Finding, Ledger
    from hsstore.verify.sampling import SampleChoice

IDS_AT_ONCE = 1 << 16
"""Ids are read in pages of one chunk."""
REDO = "--repair clears the bits; then run hsstore extract"
ADVICE = {
    BadKind.METADATA: "restore the zarr.json from a copy; states that pass are sound",
    BadKind.PLAN: "restore the array from a copy, or create the store anew; no bit can mend it",
    BadKind.UNREADABLE: "look at the disk, or the object store, first: the states may be sound, so no bit is cleared",
    BadKind.RUN: "restore it from a copy; the states do not depend on it",
    BadKind.UNEXPECTED_FILE: "find out who put it there, and move it away",
    BadKind.COMPLETION: "--repair writes the file anew",
    BadKind.SHARD_INDEX: f"{REDO}; where no sample is named, it writes the shard anew",
    BadKind.PADDING: f"{REDO}; where no sample is named, nothing reads it",
}


@dataclass(slots=True)
class Found:
    """All that a check has found."""

    path: Location
    store: Store | None
    """None where it could not be opened."""
    ledger: Ledger
    spans: list[SpanState] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    norms: npt.NDArray[np.int64] | None = None
    checked: int = 0
    tokens_checked: int = 0
    sample: SampleChoice | None = None
    chosen: int = 0


def report(found: Found, repair: Repair | None = None) -> Verification:
    """Sum up."""
    store, spans = found.store, found.spans
    listed = sorted(found.ledger.listed, key=_by_sample)
    complete, failed = (
        np.concatenate([getattr(span.completion, name) for span in spans])
        if spans
        else np.zeros(0, np.bool_)
        for name in ("complete", "failed")
    )
    has_failed = (failed != 0) & ~complete
    return Verification(
        path=str(found.path),
        ok=not listed,
        samples=len(store) if store else 0,
        checked=found.checked,
        pending=int((~complete & ~has_failed).sum()),
        failed=int(has_failed.sum()),
        bytes_checked=found.tokens_checked * (store.spec.geometry.row_bytes if store else 0),
        kinds=tuple(_count(kind, count) for kind, count in sorted(found.ledger.counts.items())),
        bad=tuple(_bad(store, listed)),
        notes=tuple(found.notes),
        sampling=_sampling(found),
        repair=repair,
        norms=slot_norms(found.norms, store.spec.model)
        if store and found.norms is not None
        else (),
        coverage=coverage(complete, has_failed, found.ledger.bad) if spans else None,
        lengths=lengths(store.length, complete) if store and spans else None,
    )


def _by_sample(finding: Finding) -> tuple[int, str, str]:
    """Order findings the same way wherever they were found first."""
    return (-1 if finding.sample is None else finding.sample, finding.kind, finding.detail)


def _count(kind: BadKind, count: Count) -> BadCount:
    return BadCount(
        kind=kind,
        findings=count.findings,
        first_samples=tuple(count.first_samples),
        example=count.example[1],
        repairable=count.repairable,
        advice=ADVICE.get(kind, REDO),
    )


def _sampling(found: Found) -> Sampling | None:
    if found.sample is None:
        return None
    return Sampling(asked=found.sample.asked, seed=found.sample.seed, chosen=found.chosen)


def _bad(store: Store | None, findings: list[Finding]) -> Iterator[Bad]:
    ids = _Ids(store)
    for finding in findings:
        yield Bad(
            sample=finding.sample,
            sample_id=ids.of(finding.sample),
            kind=finding.kind,
            detail=finding.detail,
        )


class _Ids:
    """The ids of samples that are asked for in ascending order: each page is read once."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._page = -1
        self._ids: npt.NDArray[np.uint8] | None = None

    def of(self, sample: int | None) -> str | None:
        """Return the id of a sample; None where it cannot be read, which is reported with the plan."""
        if self._store is None or sample is None:
            return None
        page, inside = divmod(sample, IDS_AT_ONCE)
        if page != self._page:
            self._page, self._ids = page, _read_ids(self._store, page)
        if self._ids is None:
            return None
        try:
            return bytes(self._ids[inside]).rstrip(b"\0").decode()
        except UnicodeDecodeError:
            return None


def _read_ids(store: Store, page: int) -> npt.NDArray[np.uint8] | None:
    try:
        return store.plan_array("sample_id", slice(page * IDS_AT_ONCE, (page + 1) * IDS_AT_ONCE))
    except (CorruptStoreError, OSError):
        return None

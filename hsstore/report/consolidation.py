"""What became of several stores: the document of `hsstore consolidate`."""

from __future__ import annotations

from hsstore.report.verification import Verification
from hsstore.spec import Record


class ConsolidationSource(Record):
    """One of the stores that were merged."""

    path: str
    store: str
    """Its UUID."""
    samples: int
    """Of its plan."""
    complete: int
    """When this run began; what has been completed since an earlier run began is not taken."""
    taken: int
    """Samples of the destination that come from it."""
    files: int
    bytes_stored: int


class UnusableSample(Record):
    """A sample that was chosen, and whose states could not be taken over. It is pending."""

    sample: int
    """In the destination."""
    sample_id: str
    source: str
    detail: str


class Consolidation(Record):
    """What became of stores that were merged: `hsstore consolidate`."""

    path: str
    """Of the destination."""
    ok: bool
    """All its samples are complete, and verify found nothing; of a dry run: it can be done."""
    dry_run: bool
    """Nothing was written."""
    resumed: bool
    """An earlier run of the same command had begun."""
    samples: int
    """Of the destination's plan: the complete samples of the sources that were wanted, each id once."""
    complete: int
    pending: int
    duplicates: int
    """Samples left out because another source has them too; 0 when it was resumed."""
    conflicts: int
    """Of these, the ones that differ from what was taken."""
    sources: tuple[ConsolidationSource, ...]
    samples_linked: int
    """By this run, like the next two: taken over with their shard."""
    samples_copied: int
    """As they were encoded."""
    samples_encoded: int
    """Decoded, and encoded anew."""
    shards: int
    """Of the destination."""
    shards_linked: int
    """By this run."""
    shards_unchanged: int
    """Foreseen to be linked."""
    unusable: tuple[UnusableSample, ...]
    bytes_raw: int
    """States of all its samples, uncompressed and without padding."""
    bytes_stored: int
    """Of all files of the destination."""
    files: int
    ratio: float | None
    """`bytes_raw / bytes_stored`; None while samples are pending."""
    bytes_needed: int
    """Foreseen before this run wrote anything, as an estimate."""
    bytes_free: int | None
    """None where an object store is written, which has no end."""
    notes: tuple[str, ...]
    verification: Verification | None
    """None where it was not wanted."""

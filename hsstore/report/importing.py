"""What became of files that were imported: the document of `hsstore import`."""

from __future__ import annotations

from enum import StrEnum

from hsstore.spec import FinalState, Record


class LeftKind(StrEnum):
    """Why a file was not taken. Append only."""

    TRUNCATED = "truncated"
    """It is cut off or damaged."""
    UNSAFE = "unsafe"
    """A pickle of more than tensors and plain values: it was not loaded."""
    FOREIGN = "foreign"
    """It is not a file of this format."""
    UNREADABLE = "unreadable"
    """The disk, or the rights, did not let it be read."""
    UNKNOWN = "unknown-tokens"
    """Its tokens are those of no sample of the store."""
    SHAPE = "shape"
    """Its states have not the layers, or the width, that they should have."""
    DTYPE = "dtype"
    """Its states are of another element type than the store's."""
    FINAL = "final"
    """Its final state is before the norm and the store's after it, or the other way round."""
    VALUES = "values"
    """Its states hold infinities, NaNs, rows of zeros, or the same twice."""
    CONFLICT = "conflict"
    """A sample that another file gave as well, with other states: the first one, by name, was taken."""
    DUPLICATE = "duplicate"
    """The same, with the same states."""
    COMPLETE = "complete"
    """Its sample was in the store already."""
    FAILED = "failed"
    """Its sample is marked as failed in the store; `hsstore extract --retry-failed` makes it pending."""

    @property
    def is_bad(self) -> bool:
        """Whether somebody should look at such a file, if there is no other one for its sample."""
        return self not in {LeftKind.CONFLICT, LeftKind.DUPLICATE, LeftKind.COMPLETE}


class TakenSample(Record):
    """A sample whose states came from a file."""

    sample: int
    sample_id: str
    file: str
    """Below the directory that was imported."""
    rows_cut: int = 0
    """Rows of padding behind the sample that were left out."""


class LeftFile(Record):
    """A file that was not taken."""

    file: str
    kind: LeftKind
    detail: str
    sample: int | None = None
    """Of the store, where the tokens told."""


class Import(Record):
    """What became of a directory of files: `hsstore import`."""

    path: str
    """The directory."""
    store: str
    created: bool
    """The store was made by this run."""
    trainer: str
    """The format."""
    layers: tuple[int, ...]
    """Outputs of 0-based decoder layers, as the user said that the files hold them."""
    final: FinalState
    """Of the store."""
    norm_applied: bool
    """Final states before the norm were normalised: a server's own may differ in the last bits."""
    samples: int
    """Of the store's plan."""
    complete_before: int
    complete: int
    pending: int
    """What `hsstore extract` has to do."""
    pending_samples: tuple[tuple[int, int], ...]
    """Which these are, as ranges (first, end)."""
    files: int
    taken: tuple[TakenSample, ...]
    left: tuple[LeftFile, ...]
    """Files that were not taken."""
    masks_differ: int
    """Files whose loss mask is not the plan's, which is the one that counts."""
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every file was of use, or another one for its sample was."""
        taken = {one.sample for one in self.taken}
        return not any(one.kind.is_bad and one.sample not in taken for one in self.left)

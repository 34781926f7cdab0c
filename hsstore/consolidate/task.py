"""What is handed to a worker, and what comes back: one block of the destination."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hsstore.errors import HsstoreError
from hsstore.files import publish

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from hsstore.consolidate.request import Linking
    from hsstore.dtype import DTypeName
    from hsstore.layout import Block, Layout
    from hsstore.location import Location
    from hsstore.objects.write import SentUpload

How = Literal["linked", "copied", "encoded", "kept"]
"""What became of a sample's chunks: `kept` were in the destination already."""


@dataclass(frozen=True, slots=True)
class StoreRef:
    """A store that a task opens."""

    path: Location
    store: str
    """Its UUID."""


@dataclass(frozen=True, slots=True)
class BlockTask:
    """One block of the destination, and where its samples are now.

    Attributes
    ----------
    length : int64 (k,)
        Tokens of each sample.
    source : uint16 (k,)
        Which of `sources` has it.
    sample : int64 (k,)
        Its index there.
    digest : uint64 (k,)
        Of its states.
    complete : bool (k,)
        It is in the destination already.
    """

    destination: StoreRef
    sources: tuple[StoreRef, ...]
    run: str
    dtype: DTypeName
    codec: dict[str, Any]
    """As the destination records it."""
    layout: Layout
    """Of the samples of this block alone."""
    block: Block
    length: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint16]
    sample: npt.NDArray[np.int64]
    digest: npt.NDArray[np.uint64]
    complete: npt.NDArray[np.bool_]
    linking: Linking
    """`never` too where the shards cannot be those of a source."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A sample whose states could not be taken from its source."""

    sample: int
    """In the destination, where it stays pending."""
    detail: str


@dataclass(slots=True)
class BlockResult:
    """Sealed shards that have no name yet; `Store.commit` takes it."""

    block: Block
    partials: dict[Path, Path] = field(default_factory=dict)
    """By final name."""
    uploads: list[SentUpload] = field(default_factory=list)
    """In an object store: what was sent, and is no object before it is published."""
    digests: dict[int, int] = field(default_factory=dict)
    """Of the samples that are new in the destination."""
    unusable: list[Unusable] = field(default_factory=list)
    how: dict[int, How] = field(default_factory=dict)

    def seal(self) -> dict[int, int]:
        """Return the digests; the worker has made the files durable."""
        return self.digests

    def publish(self) -> None:
        """Give the files their names."""
        for upload in self.uploads:
            upload.complete()
        for final, partial in self.partials.items():
            publish(partial, final)
        # To rename onto another link to the same file does nothing, and leaves both names.
        self._remove_partials()

    def loses(self, complete: set[int]) -> set[int]:
        """Return which of these samples of the block have no states any more once it is published."""
        return complete - self.how.keys() if self.partials or self.uploads else set()

    def discard(self) -> None:
        """Remove what has no name."""
        self._remove_partials()
        for upload in self.uploads:
            with suppress(HsstoreError):  # that may not be allowed: it is no object anyway
                upload.abort()

    def _remove_partials(self) -> None:
        for partial in self.partials.values():
            partial.unlink(missing_ok=True)

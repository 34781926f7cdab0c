"""The stores that are merged: opened, compared field by field, and what of them is complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.errors import CorruptStoreError, InputError, RefusedError
from hsstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from hsstore.location import Location
    from hsstore.spec import StoreSpec

MAX_SOURCES = 1 << 16
"""The destination records each sample's source in two bytes."""


@dataclass(frozen=True, slots=True)
class Source:
    """One store, and what was complete in it when it was looked at.

    Attributes
    ----------
    complete : bool (n,)
    digest : uint64 (n,)
    """

    number: int
    store: Store
    complete: npt.NDArray[np.bool_]
    digest: npt.NDArray[np.uint64]

    @property
    def path(self) -> Location:
        """Where the store is."""
        return self.store.location

    def ids(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.bytes_]:
        """Return sample ids as UTF-8, shape (k,)."""
        return self.store.sample_ids()[samples]


def open_sources(paths: Sequence[Location], destination: Location) -> list[Source]:
    """Open the stores and take note of what is complete.

    A store that a run is writing is taken as it is at this moment.

    Raises
    ------
    InputError
        One is not there, is named twice, or is the destination.
    RefusedError
        Two of them hold states that do not belong into one store.
    CorruptStoreError
        The metadata or the completion arrays of one are damaged.
    """
    _refuse_paths(paths, destination)
    sources = [_open(number, path) for number, path in enumerate(paths)]
    for other in sources[1:]:
        refuse_incompatible(sources[0].store, other.store)
    return sources


def _refuse_paths(paths: Sequence[Location], destination: Location) -> None:
    seen: set[Location] = set()
    target = destination.resolve()
    for path in paths:
        resolved = path.resolve()
        if resolved in seen:
            raise InputError(f"{path}: named twice")
        if target == resolved or _is_within(target, resolved) or _is_within(resolved, target):
            raise InputError(f"{path}: is the destination, or one lies within the other")
        seen.add(resolved)
    if len(seen) > MAX_SOURCES:
        raise InputError(f"{len(seen):,} sources; at most {MAX_SOURCES:,} can be merged at once")


def _is_within(inner: Location, outer: Location) -> bool:
    return str(inner).startswith(f"{outer}/")


def _open(number: int, path: Location) -> Source:
    try:
        store = Store.open(path.resolve())
        state = store.completion()
    except CorruptStoreError as error:
        raise CorruptStoreError(f"source {path}: {error}; run hsstore verify on it") from None
    return Source(number, store, state.complete, state.digest)


def refuse_incompatible(first: Store, other: Store) -> None:
    """Refuse stores whose states are not of one kind, naming the field and both values.

    Raises
    ------
    RefusedError
    """
    pairs = zip(_identity(first.spec), _identity(other.spec), strict=True)
    for (name, mine), (_, theirs) in pairs:
        if mine != theirs:
            raise RefusedError(
                f"these stores cannot be merged: {name} is {mine!r} in {first.location} and {theirs!r} in "
                f"{other.location}"
            )
    mine, theirs = (np.asarray(store.plan_array("norm_weight")) for store in (first, other))
    if mine.tobytes() != theirs.tobytes():
        place = int(np.flatnonzero(mine.view(np.uint32) != theirs.view(np.uint32))[0])
        raise RefusedError(
            f"these stores cannot be merged: norm_weight[{place}] is {mine[place]} in {first.location} and "
            f"{theirs[place]} in {other.location}"
        )


def _identity(spec: StoreSpec) -> Iterator[tuple[str, Any]]:
    """Yield what must be equal; the capture hash covers most of it, and the plainer field comes first."""
    model = spec.model
    yield "dtype", model.dtype
    yield "hidden", model.hidden
    yield "num_layers", model.num_layers
    yield "layers", model.layers
    yield "final", model.final
    yield "norm", model.norm.model_dump()
    yield "tokenizer_hash", spec.dataset.tokenizer_hash
    yield "capture_hash", model.capture_hash

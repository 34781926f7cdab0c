"""Small stores to merge: what a sample holds follows from its name alone, in whatever store it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from hsstore.create import Golden, LayoutOptions, create_store
from hsstore.dataset import TokenizedDataset, TokenizedSample
from hsstore.dtype import native_dtype
from hsstore.testing.finite import commit_states, make_run_record
from hsstore.testing.stores import SMALL_LAYOUT, make_model
from hsstore.verify import verify_store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.spec import Model
    from hsstore.store import Store

MODEL = make_model()


@dataclass(frozen=True, slots=True)
class Named:
    """One sample: its name decides all, but for what is given here."""

    name: str
    length: int = 5
    split: str = "train"
    version: int = 0
    """Of its states."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def tokens(self) -> npt.NDArray[np.int32]:
        """Return the tokens, (length,)."""
        return self._random("tokens").integers(0, 50_000, self.length, dtype=np.int32)

    def mask(self) -> npt.NDArray[np.uint8]:
        """Return the loss mask, (length,)."""
        return self._random("mask").integers(0, 2, self.length, dtype=np.uint8)

    def states(self, model: Model = MODEL) -> npt.NDArray[Any]:
        """Return the raw bits, (length, slots, hidden): finite, no row all zero."""
        shape = (self.length, model.slots, model.hidden)
        values = self._random(f"states {self.version}").normal(size=shape).astype(np.float32)
        bits = np.dtype(f"u{native_dtype(model.dtype).itemsize}")
        return values.astype(native_dtype(model.dtype)).view(bits)

    def _random(self, what: str) -> np.random.Generator:
        return np.random.default_rng(xxhash.xxh3_64_intdigest(f"{what} {self.name}".encode()))


def make_part(
    path: Path,
    samples: Sequence[Named],
    *,
    pending: Collection[str] = (),
    model: Model = MODEL,
    options: LayoutOptions = SMALL_LAYOUT,
    golden: Golden | None = None,
    norm_weight: npt.NDArray[np.float32] | None = None,
    tokenizer_hash: str | None = None,
) -> Store:
    """Create a store of these samples, complete but for the pending ones."""
    dataset = TokenizedDataset.from_samples(
        TokenizedSample(one.name, one.tokens(), one.mask(), one.split, one.metadata)
        for one in samples
    )
    if norm_weight is None:
        norm_weight = np.linspace(0.5, 1.5, model.hidden, dtype=np.float32)
    store = create_store(
        path,
        dataset,
        model,
        norm_weight=norm_weight,
        tokenizer_hash=tokenizer_hash,
        options=options,
        golden=golden,
    )
    store.record_run(
        make_run_record(f"run-of-{path.name}", "2026-01-01T00:00:00+00:00", ended=True)
    )
    fill(store, samples, pending=pending)
    return store


def fill(store: Store, samples: Sequence[Named], *, pending: Collection[str] = ()) -> None:
    """Commit what is not to stay pending."""
    states = {
        index: one.states(store.spec.model)
        for index, one in enumerate(samples)
        if one.name not in pending
    }
    commit_states(store, states)


def names(store: Store) -> list[str]:
    """Return the ids of all samples, in order."""
    return [store.sample_id(sample) for sample in range(len(store))]


def check_holds(store: Store, samples: Sequence[Named]) -> None:
    """Require that a store holds exactly these samples, in this order, and proves it."""
    assert names(store) == [one.name for one in samples]
    for index, one in enumerate(samples):
        assert np.array_equal(store.input_ids(index), one.tokens()), one
        assert np.array_equal(store.loss_mask(index), one.mask()), one
        assert store.split(index) == one.split
        assert store.metadata(index) == one.metadata
    check_states(store, samples)
    report = verify_store(store.path)
    assert (report.bad, report.checked) == ((), len(samples))


def check_states(store: Store, samples: Sequence[Named]) -> None:
    """Require that all samples are complete, and have these states."""
    for index, one in enumerate(samples):
        states = one.states(store.spec.model)
        assert np.array_equal(store.states(index).view(store.bits), states), one


def look(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return the time of change and the content of everything in a directory, itself included."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [root, *sorted(root.rglob("*"))]
    }

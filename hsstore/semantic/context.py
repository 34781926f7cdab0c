"""What measuring a sample needs: the store, the model's two ends, and what was fitted on the store.

It is small, can be pickled, and opens the files where it is used: a task on another host gets it whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.errors import InputError
from hsstore.location import RemotePath
from hsstore.semantic.head import Head, read_head
from hsstore.semantic.identity import CODE_CHANNELS, Codes, IdentityMap
from hsstore.semantic.loss import NEGATIVES, SampledLoss
from hsstore.semantic.norm import FinalNorm
from hsstore.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from hsstore.location import Location
    from hsstore.semantic.prefix import Reference
    from hsstore.spec import Model

PIECE_BYTES = 1 << 22
"""States that are looked at, and read, at once; a row of chunks at least."""
REMOTE_PIECES = 16
"""Read at once where each read is a request."""
WIDE = 2048
"""Hidden sizes above take every second row, and above twice that every fourth, of what costs most."""
FOLDS = 2
"""A sample is measured with a map that was fitted on samples of the other fold."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was learned from the store.

    Attributes
    ----------
    maps : by fold and auxiliary slot
        None where a slot's rows do not tell their tokens.
    known : int32 (n,), by fold
        Tokens, ascending, that its maps were fitted on often enough to tell them.
    """

    maps: tuple[tuple[IdentityMap | None, ...], ...] = ()
    known: tuple[npt.NDArray[np.int32], ...] = ()
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """Which store, with which model, looked at with which seed."""

    store: Location
    store_id: str
    """Its UUID: what was opened before under this path may be another store."""
    model_dir: Path
    seed: int
    negatives: tuple[int, ...] = ()
    """Tokens that losses are taken against."""
    code_mean: tuple[float, ...] = ()
    """Of the part of the embedding that stands for a token: the mean over the store's tokens."""
    fitted: Fitted = Fitted()

    @classmethod
    def of(cls, store: Location, model_dir: Path, seed: int) -> Source:
        """Describe a store and a checkpoint; paths are made absolute, for workers elsewhere."""
        store, model_dir = store.absolute(), model_dir.absolute()
        return cls(store, Store.open(store).spec.store, model_dir, seed)

    @property
    def files(self) -> tuple[Location, ...]:
        """Small files that every worker has to see as this process does."""
        config = self.model_dir / "config.json"
        return (self.store / "zarr.json", *([config] if config.exists() else []))

    def with_fit(self, fitted: Fitted) -> Source:
        """Return the same with what was learned."""
        return replace(self, fitted=fitted)

    def with_tokens(self, negatives: tuple[int, ...], code_mean: tuple[float, ...]) -> Source:
        """Return the same with what the store's tokens told."""
        return replace(self, negatives=negatives, code_mean=code_mean)


class Context:
    """An open source.

    Attributes
    ----------
    auxiliary : int
        Auxiliary slots; they come first.
    """

    def __init__(self, source: Source) -> None:
        self._opened = _open(source.store, source.store_id, source.model_dir)
        self._fitted = source.fitted
        self.store = self._opened.store
        self.model: Model = self.store.spec.model
        self.norm = self._opened.norm
        self.auxiliary = len(self.model.layers)
        self.has_final = self.model.final != "none"
        self.stride = stride_of(self.model.hidden)
        self.piece_rows = _piece_rows(self.store)
        is_remote = isinstance(self.store.location, RemotePath)
        self.read_rows = self.piece_rows * (REMOTE_PIECES if is_remote else 1)
        self.references = source.fitted.references
        self.codes = Codes(self._opened.head.embedding, np.array(source.code_mean, np.float32))
        self.loss = self._loss(source.negatives) if source.negatives else None

    @property
    def vocabulary(self) -> int:
        """Tokens that the model has."""
        return self._opened.head.vocabulary

    @property
    def norm_words(self) -> str:
        """The final norm, in words."""
        return self._opened.head.norm

    def ids(self, sample: int) -> npt.NDArray[np.int32]:
        """Return the tokens of a sample, (T,)."""
        return self.store.input_ids(sample)

    def read(self, sample: int, rows: slice) -> npt.NDArray[Any]:
        """Return raw bits of some rows, (n, slots, hidden)."""
        return self.store.states(sample, rows=rows).view(self.store.bits)

    def map_of(self, slot: int, sample: int) -> IdentityMap | None:
        """Return the map of a slot that this sample had no part in."""
        if not self._fitted.maps:
            return None
        return self._fitted.maps[1 - fold_of(sample)][slot]

    def is_known(self, ids: npt.NDArray[np.int32], sample: int) -> npt.NDArray[np.bool_]:
        """Say which tokens, (n,), the maps of a sample can tell; those of a slot that has one."""
        return np.isin(ids, self._fitted.known[1 - fold_of(sample)])

    def mean_code(self, ids: npt.NDArray[np.int32]) -> tuple[float, ...]:
        """Return the mean of what stands for some tokens."""
        codes = self._opened.head.embedding.rows(ids)[:, :CODE_CHANNELS]
        return tuple(codes.mean(axis=0).tolist())

    def _loss(self, negatives: tuple[int, ...]) -> SampledLoss:
        output = self._opened.head.output
        return SampledLoss(output, output.rows(np.array(negatives)))


def stride_of(hidden: int) -> int:
    """Return how many rows go by for each that is looked at closely.

    >>> [stride_of(hidden) for hidden in (576, 4096, 7168)]
    [1, 2, 4]
    """
    return 1 if hidden <= WIDE else 2 if hidden <= 2 * WIDE else 4


def fold_of(sample: int) -> int:
    """Return which half of the store a sample belongs to, mixed well.

    >>> [fold_of(sample) for sample in range(8)]
    [0, 1, 1, 0, 1, 0, 0, 1]
    """
    return sample.bit_count() % FOLDS


def choose_negatives(ids: npt.NDArray[np.int32], vocabulary: int, seed: int) -> tuple[int, ...]:
    """Choose the tokens that losses are taken against: the most frequent, and as many others."""
    generator = np.random.default_rng(seed)
    tokens, counts = np.unique(ids, return_counts=True)
    frequent = tokens[np.argsort(-counts, kind="stable")][: NEGATIVES // 2]
    others = generator.permutation(vocabulary)[:NEGATIVES]
    chosen = dict.fromkeys([*frequent.tolist(), *others.tolist()])
    return tuple(list(chosen)[: min(NEGATIVES, vocabulary)])


def _piece_rows(store: Store) -> int:
    """Return the rows of a piece: whole chunks."""
    sizes = store.spec.geometry
    return max(1, PIECE_BYTES // (sizes.chunk_rows * sizes.row_bytes)) * sizes.chunk_rows


@dataclass(frozen=True, slots=True)
class _Opened:
    store: Store
    head: Head
    norm: FinalNorm


@lru_cache(maxsize=4)
def _open(path: Location, store_id: str, model_dir: Path) -> _Opened:
    store = Store.open(path)
    if store.spec.store != store_id:
        raise InputError(f"{path} has become another store in the meantime: run verify again")
    weight = np.asarray(store.plan_array("norm_weight"), np.float32)
    head = read_head(model_dir, store.spec.model, weight)
    return _Opened(store, head, FinalNorm.of(weight, store.spec.model.norm.epsilon))

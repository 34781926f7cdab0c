"""The samples of a store as tensors of another project's files: an export that is never written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hsstore.dtype import native_dtype
from hsstore.errors import InputError
from hsstore.formats import FORMATS
from hsstore.formats.source import StoreSource
from hsstore.loaders.reading import OPEN_STORES, open_once
from hsstore.loaders.selection import completeness
from hsstore.location import locate
from hsstore.store import Store
from hsstore.subset import of_split

if TYPE_CHECKING:
    import numpy.typing as npt

    from hsstore.location import Location


@dataclass(frozen=True, slots=True, eq=False)
class ExportedSamples:
    """Samples of a store: row r is the r-th file that `hsstore export` would write of them.

    It is small and can be pickled; each process opens the store by itself, when it reads its first sample.

    Attributes
    ----------
    format : str
        As `hsstore export` calls it.
    samples : int64 (n,)
        Their indices in the store, ascending.
    """

    path: Location
    store_id: str
    format: str
    samples: npt.NDArray[np.int64]

    @classmethod
    def of(cls, path: str | Location, form: str, *, split: str | None = None) -> ExportedSamples:
        """Choose the samples of a store that are complete now.

        Parameters
        ----------
        form : str
            The format.
        split : str, optional
            Samples of this split alone.

        Raises
        ------
        InputError
            There is no store, no such split, or no complete sample.
        RefusedError
            The store has not what the format needs.
        """
        store = Store.open(path)
        samples = np.flatnonzero(completeness(store)[0] & of_split(store, split))
        if not len(samples):
            raise InputError(f"{path}: no complete sample to train on: see hsstore status")
        chosen = cls(locate(path).absolute(), store.spec.store, form, samples)
        chosen.source()
        return chosen

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.samples)

    def open(self) -> Store:
        """Open the store, once a process."""
        return open_once(self.path, self.store_id, os.getpid())

    def source(self) -> StoreSource:
        """Return what reads single samples, made once a process."""
        return _source(self.path, self.store_id, self.format, os.getpid())

    @property
    def length(self) -> npt.NDArray[np.int32]:
        """Tokens of each sample, shape (n,)."""
        return self.open().length[self.samples]

    def read(self, row: int) -> dict[str, Any]:
        """Read a sample; see `read_sample`.

        Raises
        ------
        IndexError
        """
        return self.read_sample(int(self.samples[range(len(self))[row]]))

    def read_sample(self, sample: int) -> dict[str, Any]:
        """Read what the file of a sample would hold, but for its id: arrays as tensors.

        Parameters
        ----------
        sample : int
            Its index in the store.

        Raises
        ------
        NotExtractedError
            It is not complete any more.
        CorruptStoreError
            Its payload, or its part of the plan, does not pass the crc.
        """
        content, _ = self.source().content(sample, sample_id="")
        return {name: as_tensor(value) for name, value in content.items()}


@lru_cache(maxsize=OPEN_STORES)
def _source(path: Location, store_id: str, form: str, process: int) -> StoreSource:
    return StoreSource(open_once(path, store_id, process), FORMATS[form])


def as_tensor(value: Any) -> Any:  # noqa: ANN401  # whatever a file holds
    """Return an array as a tensor that shares its memory, and anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == native_dtype("bfloat16"):
        return torch.from_numpy(value.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(value)

"""Where single samples lie, without planning the whole store: the plan is read as it is needed."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.layout import chunks_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from hsstore.layout import ChunkPlace, Geometry

PAGE_SAMPLES = 1 << 16
"""Read at once: a chunk of the arrays that the plan fixes."""
KEPT_ID_PAGES = 16
"""Up to 4 MB each."""


class PlanColumn:
    """One number of each sample. Safe to use from many threads; pages are kept once they are read.

    Parameters
    ----------
    read : callable
        Returns the values of a slice of samples.
    """

    def __init__(self, read: Callable[[slice], npt.NDArray[Any]]) -> None:
        self._read = read
        self._pages: dict[int, npt.NDArray[Any]] = {}

    def __getitem__(self, sample: int) -> int:
        """Return the number of one sample.

        Raises
        ------
        CorruptStoreError
            The page does not pass its crc32c.
        """
        page, inside = divmod(sample, PAGE_SAMPLES)
        values = self._pages.get(page)
        if values is None:
            values = self._read(_page(page))
            self._pages[page] = values
        return int(values[inside])


def _page(page: int) -> slice:
    return slice(page * PAGE_SAMPLES, (page + 1) * PAGE_SAMPLES)


class SampleIndex:
    """What a reader of single samples needs of a layout.

    Attributes
    ----------
    row_start, length : PlanColumn
        First row, and tokens, of each sample.
    """

    def __init__(self, geometry: Geometry, read: Callable[[str, slice], npt.NDArray[Any]]) -> None:
        self.geometry = geometry
        self.row_start = PlanColumn(lambda where: read("row_start", where))
        self.length = PlanColumn(lambda where: read("length", where))
        self._ids = lru_cache(KEPT_ID_PAGES)(lambda page: as_text(read("sample_id", _page(page))))

    def sample_id(self, sample: int) -> str:
        """Return the dataset's own id of a sample; the pages that were read last are kept."""
        page, inside = divmod(sample, PAGE_SAMPLES)
        return bytes(self._ids(page)[inside]).decode()

    def chunks_of(self, sample: int, length: int) -> Iterator[ChunkPlace]:
        """Yield the chunks of a sample in the order in which they are written."""
        return chunks_at(self.geometry, self.row_start[sample], length)


def as_text(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.bytes_]:
    """Return ids, (n, width) padded with zeros, as UTF-8, (n,)."""
    packed = np.ascontiguousarray(packed)
    return packed.view(f"S{packed.shape[1]}").ravel()

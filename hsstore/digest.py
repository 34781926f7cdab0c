"""The digest of a sample's payload, and the hash of a store's plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

if TYPE_CHECKING:
    import numpy.typing as npt


def payload_digest(bits: npt.NDArray[Any]) -> int:
    """XXH3-64 of the little-endian bytes of states of shape (length, slots, hidden), C order."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(bits).data)


class PayloadHasher:
    """`payload_digest` of states that are read in parts."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_64()

    def update(self, part: npt.NDArray[Any]) -> None:
        """Take the next rows, (rows, slots, hidden)."""
        self._state.update(np.ascontiguousarray(part).data)

    def digest(self) -> int:
        """Return the digest of all that was taken."""
        return self._state.intdigest()


class PlanHasher:
    """XXH3-128 over the dtype, shape and bytes of arrays in turn, also of ones read in parts."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def begin(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        """Start the next array."""
        self._state.update(f"{np.dtype(dtype).str}{shape}".encode())

    def update(self, part: npt.NDArray[Any]) -> None:
        """Take the next elements of the array, in C order."""
        self._state.update(np.ascontiguousarray(part).data)

    def hexdigest(self) -> str:
        """Return the hash in hex."""
        return self._state.hexdigest()


def plan_hash(*arrays: npt.NDArray[Any]) -> str:
    """Hash whole arrays; see `PlanHasher`."""
    hasher = PlanHasher()
    for array in arrays:
        hasher.begin(array.dtype, array.shape)
        hasher.update(array)
    return hasher.hexdigest()

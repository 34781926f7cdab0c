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


def plan_hash(*arrays: npt.NDArray[Any]) -> str:
    """XXH3-128, in hex, over the dtype, shape and bytes of each array in turn."""
    state = xxhash.xxh3_128()
    for array in arrays:
        state.update(f"{array.dtype.str}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()

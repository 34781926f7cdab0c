"""The index at the end of a shard: (offset, nbytes) of every chunk, then a crc32c.

The format is that of the Zarr v3 `sharding_indexed` codec with `index_location: end` and index
codecs `bytes` (little endian) and `crc32c`. A missing chunk has both numbers 2**64 - 1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from hsstore.errors import CorruptStoreError

if TYPE_CHECKING:
    import numpy.typing as npt

    Index = npt.NDArray[np.uint64]
    """Shape (chunks, 2): offset and nbytes in the shard file."""

MISSING = np.uint64(2**64 - 1)


def empty_index(chunks: int) -> Index:
    """Return an index in which every chunk is missing."""
    return np.full((chunks, 2), MISSING, dtype="<u8")


def index_bytes(chunks: int) -> int:
    """Size of the encoded index, its crc32c included."""
    return chunks * 16 + 4


def encode_index(index: Index) -> bytes:
    """Encode an index of shape (chunks, 2)."""
    body = index.astype("<u8").tobytes()
    return body + struct.pack("<I", google_crc32c.value(body))


def decode_index(encoded: bytes, chunks: int, data_bytes: int) -> Index:
    """Decode and check an index.

    Parameters
    ----------
    data_bytes : int
        Bytes of the shard file before the index: no chunk may reach beyond them.

    Raises
    ------
    CorruptStoreError
        The crc32c is wrong, or a chunk lies outside the file.
    """
    body = encoded[:-4]
    if len(encoded) != index_bytes(chunks) or data_bytes < 0:
        raise CorruptStoreError("shard is shorter than its index")
    if encoded[-4:] != struct.pack("<I", google_crc32c.value(body)):
        raise CorruptStoreError("shard index crc32c does not match")
    index = np.frombuffer(body, dtype="<u8").reshape(chunks, 2)
    present = index[index[:, 0] != MISSING]
    limit = np.uint64(data_bytes)
    if np.any(present[:, 0] > limit) or np.any(present[:, 1] > limit - present[:, 0]):
        raise CorruptStoreError("shard index points outside the file")
    return index

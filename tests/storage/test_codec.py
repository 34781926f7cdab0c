"""Chunks to bytes and back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from hsstore.codec import CRC_BYTES, ChunkCodec
from hsstore.digest import payload_digest, plan_hash
from hsstore.errors import CorruptStoreError

Bits = npt.NDArray[Any]

chunks = arrays.arrays(
    dtype=st.sampled_from([np.uint16, np.uint32]),
    shape=arrays.array_shapes(min_dims=3, max_dims=3, max_side=17),
)


def real_states(rows: int) -> Bits:
    """Make bits distributed like real states: a few exponents, random mantissas, signs."""
    values = np.random.default_rng(0).standard_normal((rows, 4, 64)).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@given(chunks)
def test_any_bits_of_any_odd_size_come_back(chunk: Bits) -> None:
    codec = ChunkCodec(chunk.itemsize)
    out = np.empty_like(chunk)

    codec.decode(codec.encode(chunk), out)

    np.testing.assert_array_equal(out, chunk)


@pytest.mark.parametrize("rows", [1, 127, 1024, 4097])
def test_real_states_of_more_than_one_blosc_block_come_back_smaller(rows: int) -> None:
    chunk = real_states(rows)
    codec = ChunkCodec(2)
    out = np.empty_like(chunk)

    encoded = codec.encode(chunk)
    codec.decode(encoded, out)

    np.testing.assert_array_equal(out, chunk)
    assert rows == 1 or len(encoded) < 0.85 * chunk.nbytes


def test_a_flipped_byte_anywhere_is_corrupt() -> None:
    codec = ChunkCodec(2)
    chunk = real_states(3)
    encoded = codec.encode(chunk)

    for position in range(len(encoded)):
        damaged = bytearray(encoded)
        damaged[position] ^= 1
        with pytest.raises(CorruptStoreError, match="crc32c"):
            codec.decode(bytes(damaged), np.empty_like(chunk))


@pytest.mark.parametrize("length", [0, 1, CRC_BYTES, CRC_BYTES + 15, 100])
def test_a_chunk_cut_short_is_corrupt(length: int) -> None:
    codec = ChunkCodec(2)
    chunk = real_states(3)

    with pytest.raises(CorruptStoreError):
        codec.decode(codec.encode(chunk)[:length], np.empty_like(chunk))


def test_a_sound_chunk_of_another_size_is_corrupt() -> None:
    codec = ChunkCodec(2)

    with pytest.raises(CorruptStoreError, match="not a Blosc frame of the chunk's size"):
        codec.decode(codec.encode(real_states(3)), np.empty((4, 4, 64), np.uint16))


def test_encoding_gives_the_same_bytes_in_every_thread() -> None:
    codec = ChunkCodec(2)
    chunk = real_states(512)

    with ThreadPoolExecutor(4) as pool:
        encoded = set(pool.map(codec.encode, [chunk] * 16))

    assert len(encoded) == 1


def test_the_digest_is_of_the_raw_bytes_in_row_order() -> None:
    bits = real_states(5)

    digest = payload_digest(bits)

    # A view in another memory order holds the same states.
    assert payload_digest(np.asfortranarray(bits)) == digest
    assert payload_digest(bits[::-1]) != digest


def test_the_plan_hash_tells_arrays_of_equal_bytes_apart() -> None:
    values = np.arange(6, dtype=np.int32)

    hashes = {
        plan_hash(values, values[:0]),
        plan_hash(values[:3], values[3:]),
        plan_hash(values.view(np.uint32), values[:0]),
        plan_hash(values.reshape(2, 3), values[:0]),
    }

    assert len(hashes) == 4

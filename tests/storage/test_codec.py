"""Chunks to bytes and back, by every codec."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st
from numcodecs.blosc import Blosc

from hsstore.codec import CODEC_NAMES, CRC_BYTES, ChunkCodec, CodecName, codec_metadata, parse_codec
from hsstore.digest import payload_digest, plan_hash
from hsstore.dtype import DTypeName, bits_dtype, nan_bits
from hsstore.errors import CorruptStoreError, RefusedError

Bits = npt.NDArray[Any]
Shape = tuple[int, int, int]

DTYPES: list[DTypeName] = ["bfloat16", "float16", "float32"]
every_codec = pytest.mark.parametrize("name", CODEC_NAMES)


def codec_of(shape: Shape, name: CodecName = "fast", dtype: DTypeName = "bfloat16") -> ChunkCodec:
    return ChunkCodec(shape, dtype, codec_metadata(name, bits_dtype(dtype).itemsize))


def real_states(rows: int, slots: int = 4, hidden: int = 64) -> Bits:
    """Make bits distributed like real states: channels of many scales, random mantissas, signs."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((rows, slots, hidden)).astype(np.float32)
    values *= generator.lognormal(0, 1.5, (1, slots, hidden)).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def decoded(codec: ChunkCodec, encoded: bytes, dtype: DTypeName = "bfloat16") -> Bits:
    out = np.empty(codec.shape, bits_dtype(dtype))
    codec.decode(encoded, out)
    return out


def padded(part: Bits, shape: Shape, dtype: DTypeName) -> Bits:
    """Return what a chunk must hold: NaN in the rows that the part lacks."""
    chunk = np.full(shape, nan_bits(dtype), part.dtype)
    chunk[: len(part)] = part
    return chunk


def some_bits(generator: np.random.Generator, kind: str, shape: Shape, dtype: DTypeName) -> Bits:
    bits = bits_dtype(dtype)
    noise = generator.integers(0, 1 << 8 * bits.itemsize, shape, dtype=bits)
    match kind:
        case "noise":
            return noise
        case "constant":
            return np.full(shape, noise.flat[0], bits)
        case "zeros":
            return np.zeros(shape, bits)
        case "coarse":  # one plane is empty
            return np.asarray(noise >> bits.type(8) << bits.type(8))
        case "half":
            noise[len(noise) // 2 :] = 0
            return noise
        case _:
            normal = generator.standard_normal(shape).astype(np.float32).view(np.uint32)
            return normal if bits.itemsize == 4 else (normal >> 16).astype(bits)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[DTypeName, Shape, Bits]:
    """Draw a dtype, the shape of a chunk, and a part of one, perhaps not contiguous."""
    dtype = draw(st.sampled_from(DTYPES))
    # Up to 3 MB: none, one and several blocks, with and without a shorter last one.
    rows = draw(st.one_of(st.integers(1, 9), st.integers(1, 300)))
    hidden = draw(st.one_of(st.integers(1, 17), st.integers(1, 900)))
    shape = (rows, draw(st.integers(1, 3)), hidden)
    kind = draw(st.sampled_from(["noise", "constant", "zeros", "coarse", "half", "states"]))
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    whole = some_bits(generator, kind, (rows, shape[1] + 1, hidden), dtype)
    part = whole[: draw(st.one_of(st.just(rows), st.integers(1, rows))), : shape[1]]
    return dtype, shape, part if draw(st.booleans()) else np.ascontiguousarray(part)


@every_codec
@settings(deadline=None)
@given(drawn=chunks())
def test_any_bits_of_any_odd_size_come_back(
    name: CodecName, drawn: tuple[DTypeName, Shape, Bits]
) -> None:
    dtype, shape, part = drawn
    codec = codec_of(shape, name, dtype)
    buffer = np.full(codec.max_bytes + 8, 0xEE, np.uint8)

    size = codec.encode_into(part, buffer)

    assert size <= codec.max_bytes
    assert (buffer[codec.max_bytes :] == 0xEE).all()
    out = decoded(codec, buffer[:size].tobytes(), dtype)
    np.testing.assert_array_equal(out, padded(part, shape, dtype))


@settings(deadline=None)
@given(drawn=chunks())
def test_libblosc_decodes_our_frames_and_they_are_never_much_larger_than_the_values(
    drawn: tuple[DTypeName, Shape, Bits],
) -> None:
    dtype, shape, part = drawn

    frame = codec_of(shape, "fast", dtype).encode(part)[:-CRC_BYTES]

    values = padded(part, shape, dtype)
    assert bytes(Blosc().decode(frame)) == values.tobytes()
    assert len(frame) <= values.nbytes + 16  # the header of Blosc


@every_codec
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_65536_patterns_come_back_and_so_any_nan_infinity_and_minus_zero(
    name: CodecName, dtype: DTypeName
) -> None:
    patterns = np.arange(65_536, dtype=np.uint16)
    by_row = patterns.reshape(64, 2, 512)
    by_channel = np.ascontiguousarray(patterns.reshape(1024, 64).T).reshape(64, 2, 512)

    for chunk in (by_row, by_channel):
        codec = codec_of(chunk.shape, name, dtype)
        np.testing.assert_array_equal(decoded(codec, codec.encode(chunk), dtype), chunk)


@every_codec
def test_all_upper_halves_of_float32_come_back(name: CodecName) -> None:
    upper = np.arange(65_536, dtype=np.uint32) << 16
    chunk = (upper | np.random.default_rng(0).integers(0, 1 << 16, 65_536, np.uint32)).reshape(
        64, 2, 512
    )
    codec = codec_of(chunk.shape, name, "float32")

    np.testing.assert_array_equal(decoded(codec, codec.encode(chunk), "float32"), chunk)


@every_codec
@pytest.mark.parametrize("slots", [slice(0, 4), slice(1, 3), np.array([3, 0]), ...])
@pytest.mark.parametrize(("first", "count"), [(0, 9), (0, 4), (3, 5), (8, 1), (4, 0)])
def test_any_rows_and_slots_of_a_chunk_are_decoded_to_any_memory(
    name: CodecName, slots: Any, first: int, count: int
) -> None:
    chunk = real_states(9)
    codec = codec_of((9, 4, 64), name)
    encoded = codec.encode(chunk[:7])
    expected = padded(chunk[:7], (9, 4, 64), "bfloat16")[first : first + count, slots]
    wide = np.full((count, 2 * expected.shape[1], 64), 0xEEEE, np.uint16)

    codec.decode(encoded, wide[:, ::2], first, slots)

    np.testing.assert_array_equal(wide[:, ::2], expected)
    assert (wide[:, 1::2] == 0xEEEE).all()


def test_what_is_not_compressed_is_copied_once_and_not_into_scratch_memory_first() -> None:
    chunk = real_states(9)
    codec = codec_of((9, 4, 64), "none")
    scratch = codec._scratch()
    scratch[:] = 7
    out = np.empty((3, 2, 64), np.uint16)

    codec.decode(codec.encode(chunk), out, 2, slice(1, 3))

    np.testing.assert_array_equal(out, chunk[2:5, 1:3])
    assert (scratch == 7).all()


def ratio(name: CodecName, chunk: Bits, rows: int | None = None) -> float:
    shape = (rows or len(chunk), *chunk.shape[1:])
    return chunk.nbytes / len(codec_of(shape, name).encode(chunk))


def test_real_states_compress_as_well_as_by_libblosc_and_better_with_max() -> None:
    chunk = real_states(512, 1, 2048)

    assert ratio("fast", chunk) > 0.99 * ratio("zstd", chunk) > 1.2
    assert ratio("max", chunk) > 1.05 * ratio("fast", chunk)


@pytest.mark.parametrize("name", ["fast", "max", "zstd"])
def test_padding_is_nearly_free(name: CodecName) -> None:
    chunk = real_states(129, 1, 2048)

    assert ratio(name, chunk, rows=1024) > 0.97 * ratio(name, chunk)


@pytest.mark.parametrize("name", ["fast", "max"])
def test_an_empty_plane_takes_no_room(name: CodecName) -> None:
    wide = real_states(256, 1, 2048).astype(np.uint32) << 16  # bfloat16 stored as float32
    codec = codec_of(wide.shape, name, "float32")

    assert len(codec.encode(wide)) < 0.55 * wide.nbytes / 1.2


@every_codec
def test_a_flipped_byte_anywhere_is_corrupt(name: CodecName) -> None:
    codec = codec_of((3, 2, 16), name)
    encoded = codec.encode(real_states(3, 2, 16))

    for position in range(len(encoded)):
        damaged = bytearray(encoded)
        damaged[position] ^= 1
        with pytest.raises(CorruptStoreError, match="crc32c"):
            decoded(codec, bytes(damaged))


@every_codec
@pytest.mark.parametrize("length", [0, 1, CRC_BYTES, CRC_BYTES + 15, 100])
def test_a_chunk_cut_short_is_corrupt(name: CodecName, length: int) -> None:
    codec = codec_of((3, 4, 64), name)

    with pytest.raises(CorruptStoreError):
        decoded(codec, codec.encode(real_states(3))[:length])


@every_codec
def test_a_sound_chunk_of_another_size_is_corrupt(name: CodecName) -> None:
    encoded = codec_of((3, 4, 64), name).encode(real_states(3))

    with pytest.raises(CorruptStoreError, match=r"chunk is not a Blosc frame|chunk has .* bytes"):
        decoded(codec_of((4, 4, 64), name), encoded)


@every_codec
def test_encoding_gives_the_same_bytes_in_every_thread(name: CodecName) -> None:
    chunk = real_states(512)
    codec = codec_of((512, 4, 64), name)

    with ThreadPoolExecutor(4) as pool:
        encoded = set(pool.map(codec.encode, [chunk] * 16))

    assert len(encoded) == 1


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "hsstore.next_year", "configuration": {}},
        {"name": "blosc"},
        {"name": "blosc", "configuration": {"cname": "zstd"}},
        codec_metadata("fast", 2) | {"name": "gzip"},
        {"name": "hsstore.channel_bias", "configuration": {"compressor": {"name": "gzip"}}},
    ],
)
def test_a_codec_that_this_version_does_not_have_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=r"encoded with .*later"):
        parse_codec(metadata)


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

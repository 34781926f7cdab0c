"""Shard files: what is written is read; anything else is called corrupt, never guessed."""

from __future__ import annotations

import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, strategies as st

from hsstore.errors import CorruptStoreError, OutputError
from hsstore.reader import OPEN_SHARDS, PayloadReader
from hsstore.shard.index import MISSING, decode_index, empty_index, encode_index, index_bytes
from hsstore.shard.reader import ShardReader
from hsstore.shard.writer import ShardWriter
from hsstore.store import Store
from hsstore.testing.invariants import check_set_bits_read_back
from hsstore.testing.stores import commit_block, fill_store, make_store, payload

LENGTHS = [3, 9, 40, 1, 16, 5]
"""Blocks of the samples 0 and 1, 2 (three shards of its own), 3, 4, 5."""


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def open_files(directory: Path) -> int:
    """Count the files below a directory that this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            count += link.readlink().is_relative_to(directory)
    return count


def write_shard(path: Path, chunks: dict[int, bytes], count: int) -> None:
    writer = ShardWriter(path, "run", count)
    for chunk, encoded in chunks.items():
        writer.append(chunk, encoded)
    writer.seal()
    writer.publish()


@given(st.data())
def test_chunks_come_back_in_any_order_and_the_others_are_missing(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    chunks = data.draw(st.dictionaries(st.integers(0, count - 1), st.binary(min_size=1)))

    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        write_shard(Path(directory) / "c.0", chunks, count)
        reader = ShardReader(Path(directory) / "c.0", count)
        present = {chunk: reader.read(chunk) for chunk in range(count) if reader.has(chunk)}
        reader.close()

    assert present == chunks


def test_reading_a_missing_chunk_raises_with_its_number(directory: Path) -> None:
    write_shard(directory / "c.7.0.0", {0: b"data"}, 3)
    reader = ShardReader(directory / "c.7.0.0", 3)

    with pytest.raises(CorruptStoreError, match=r"c\.7\.0\.0: chunk 2 is missing"):
        reader.read(2)


def test_a_shard_has_no_name_before_it_is_published(directory: Path) -> None:
    writer = ShardWriter(directory / "c.0", "run-9", 2)
    writer.append(0, b"data")
    writer.seal()

    before = names(directory)
    writer.publish()

    assert before == ["c.0.run-9.partial"]
    assert names(directory) == ["c.0"]


def test_a_discarded_shard_leaves_the_old_one_and_no_partial_file(directory: Path) -> None:
    write_shard(directory / "c.0", {0: b"old"}, 1)
    writer = ShardWriter(directory / "c.0", "run", 1)
    writer.append(0, b"new")

    writer.discard()

    assert names(directory) == ["c.0"]
    assert ShardReader(directory / "c.0", 1).read(0) == b"old"


def test_a_disk_that_refuses_the_removal_too_does_not_hide_the_first_error(
    directory: Path,
) -> None:
    writer = ShardWriter(directory / "c.0", "run", 1)
    partial = directory / "c.0.run.partial"
    partial.unlink()
    partial.mkdir()  # cannot be unlinked, as nothing can on a disk that turned read-only

    writer.discard()

    assert names(directory) == ["c.0.run.partial"]


def test_a_full_disk_is_an_output_error_that_names_the_file_and_the_space(
    directory: Path,
) -> None:
    # /dev/full refuses every write with ENOSPC, as a full disk does.
    (directory / "c.0.run.partial").symlink_to("/dev/full")
    writer = ShardWriter(directory / "c.0", "run", 1)

    with pytest.raises(OutputError, match=r"c\.0: No space left on device \(.* GB free of"):
        writer.append(0, b"data")
    writer.discard()

    assert names(directory) == []


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=9))
def test_an_index_of_chunks_inside_the_file_round_trips(entries: list[tuple[int, int]]) -> None:
    index = np.array(entries, "<u8")
    data_bytes = int(index.sum(axis=1).max())

    decoded = decode_index(encode_index(index), len(index), data_bytes)

    np.testing.assert_array_equal(decoded, index)


@pytest.mark.parametrize("entry", [(0, 101), (101, 0), (90, 11), (2**63, 2**63), (5, MISSING)])
def test_an_index_that_points_outside_the_file_is_corrupt(entry: tuple[int, int]) -> None:
    index = empty_index(3)
    index[1] = entry

    with pytest.raises(CorruptStoreError, match="outside the file"):
        decode_index(encode_index(index), 3, data_bytes=100)


def test_the_index_is_that_of_the_zarr_sharding_codec() -> None:
    index = empty_index(2)
    index[1] = (5, 7)

    encoded = encode_index(index)

    body = struct.pack("<4Q", 2**64 - 1, 2**64 - 1, 5, 7)
    assert encoded == body + struct.pack("<I", google_crc32c.value(body))
    assert len(encoded) == index_bytes(2)


def test_a_flipped_byte_anywhere_in_the_index_is_corrupt() -> None:
    encoded = encode_index(np.array([[0, 10], [10, 20]], "<u8"))

    for position in range(len(encoded)):
        damaged = bytearray(encoded)
        damaged[position] ^= 0x40
        with pytest.raises(CorruptStoreError, match="crc32c"):
            decode_index(bytes(damaged), 2, data_bytes=30)


@pytest.mark.parametrize("left", [0, 1, 35, 36])
def test_a_shard_cut_shorter_is_corrupt(directory: Path, left: int) -> None:
    path = directory / "c.0"
    write_shard(path, {0: b"data"}, 2)
    os.truncate(path, left)

    with pytest.raises(CorruptStoreError, match=r"c\.0"):
        ShardReader(path, 2)


def test_a_missing_shard_is_corrupt(directory: Path) -> None:
    with pytest.raises(CorruptStoreError, match="shard is missing"):
        ShardReader(directory / "c.0", 2)


def full_store(directory: Path) -> Store:
    store = make_store(directory / "s.zarr", LENGTHS)
    fill_store(store)
    return store


def test_a_flipped_byte_anywhere_in_a_shard_is_never_read_as_data(directory: Path) -> None:
    store = full_store(directory)
    path = store.path / "hidden_states" / "c.0.0.0"
    good = path.read_bytes()

    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        reader = PayloadReader(
            store.path, store.layout, store.length, "bfloat16", codec=store.codec
        )
        unreadable = 0
        for sample in (0, 1):
            try:
                bits = reader.read(sample)
            except CorruptStoreError:
                unreadable += 1
            else:
                np.testing.assert_array_equal(bits, payload(store, sample))
        assert unreadable, f"byte {position}"


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_a_lost_shard_of_a_long_sample_names_the_sample(directory: Path, shard: int) -> None:
    store = full_store(directory)
    (store.path / "hidden_states" / f"c.{shard}.0.0").unlink()

    with pytest.raises(CorruptStoreError, match=rf"sample 2: c\.{shard}\.0\.0: shard is missing"):
        store[2]


def test_a_set_bit_whose_chunks_are_missing_raises_instead_of_reading_fill(
    directory: Path,
) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    commit_block(store, 0, [0])
    lie = np.ones(2, np.bool_)
    store._arrays.write("complete", slice(0, 2), lie)

    with pytest.raises(CorruptStoreError, match=r"sample 1: .*is missing"):
        store[1]


def test_a_reader_follows_a_shard_that_was_replaced_since_it_cached_the_index(
    directory: Path,
) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    commit_block(store, 0, [1])
    reader = Store.open(store.path)
    assert len(reader[1].input_ids) == 9  # the index is cached now

    commit_block(store, 0, [0], run="another")

    np.testing.assert_array_equal(reader[0].hidden_states.view(store.bits), payload(store, 0))
    check_set_bits_read_back(reader)


def test_a_reader_opens_a_shard_anew_once_when_a_chunk_is_damaged(directory: Path) -> None:
    store = full_store(directory)
    path = store.path / "hidden_states" / "c.0.0.0"
    good, status = path.read_bytes(), path.stat()
    assert len(store[0].input_ids) == 3
    # Other bytes in the same inode, with its old time: nothing tells the reader before the crc.
    path.write_bytes(good[: len(good) // 2] + bytes(len(good) - len(good) // 2))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(CorruptStoreError, match="index crc32c"):
        store[1]
    path.write_bytes(good)

    np.testing.assert_array_equal(store[1].hidden_states.view(store.bits), payload(store, 1))


def test_readers_keep_a_bounded_number_of_shards_open(directory: Path) -> None:
    store = make_store(directory / "s.zarr", [16] * (OPEN_SHARDS + 10))
    fill_store(store)
    for sample in range(len(store)):
        assert len(store[sample].hidden_states) == 16

    assert 0 < open_files(store.path / "hidden_states") <= OPEN_SHARDS

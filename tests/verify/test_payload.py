"""Damaged shards and wrong states: found, and every sample they hit is named."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hsstore.report import BadKind
from hsstore.shard import shard_path
from hsstore.shard.index import index_bytes
from hsstore.shard.reader import ShardReader
from hsstore.shard.writer import ShardWriter
from hsstore.store import Store
from hsstore.testing.finite import MIXED_COMPLETE, commit_states, finite_states
from hsstore.testing.stores import make_store
from hsstore.verify import verify_store

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    """Flip bits of one byte in place."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(bytes(data))


def complete_in_block_of(store: Store, sample: int) -> list[int]:
    """Return the complete samples that share a block with one."""
    block = store.layout.block(store.layout.block_of(sample))
    return [other for other in block.samples if other in MIXED_COMPLETE]


def found(path: Path) -> list[tuple[int | None, BadKind]]:
    """Return what verify names."""
    report = verify_store(path)
    assert report.ok == (not report.bad)
    return [(bad.sample, bad.kind) for bad in report.bad]


def rewrite_shard(store: Store, sample: int, chunks: dict[int, npt.NDArray[Any] | None]) -> None:
    """Replace chunks in the shard of a sample, correctly encoded, or leave them away."""
    shard = next(store.layout.chunks_of(sample, 1)).shard
    path, count = shard_path(store.path, shard), store.layout.geometry.shard_chunks
    old = ShardReader(path, count)
    writer = ShardWriter(path, "test", count)
    for chunk in range(count):
        if chunk in chunks:
            bits = chunks[chunk]
            if bits is not None:
                writer.append(chunk, store.codec.encode(bits))
        elif old.has(chunk):
            writer.append(chunk, old.read(chunk))
    writer.seal()
    writer.publish()


@pytest.mark.parametrize("sample", MIXED_COMPLETE)
def test_a_flipped_byte_in_a_chunk_names_its_sample_alone(damaged: Path, sample: int) -> None:
    store = Store.open(damaged)
    place = list(store.layout.chunks_of(sample, int(store.length[sample])))[-1]
    path = shard_path(damaged, place.shard)
    offset, nbytes = map(
        int, ShardReader(path, store.layout.geometry.shard_chunks).index[place.chunk]
    )

    flip(path, offset + nbytes // 2)

    report = verify_store(damaged)
    assert [(bad.sample, bad.kind) for bad in report.bad] == [(sample, BadKind.CHUNK)]
    assert report.bad[0].sample_id == f"chat/{sample}/ä"
    assert f"c.{place.shard}.0.0 chunk {place.chunk}" in report.bad[0].detail


@pytest.mark.parametrize("from_end", [1, 3, 4, 5, 20])
def test_a_flipped_byte_in_a_shard_index_names_every_sample_of_the_block(
    damaged: Path, from_end: int
) -> None:
    store = Store.open(damaged)
    path = shard_path(damaged, next(store.layout.chunks_of(1, 1)).shard)

    flip(path, path.stat().st_size - from_end)

    expected = [(sample, BadKind.SHARD_INDEX) for sample in complete_in_block_of(store, 1)]
    assert found(damaged) == expected
    assert len(expected) > 1


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_truncated_shard_names_every_sample_of_the_block(damaged: Path, keep: int) -> None:
    store = Store.open(damaged)
    path = shard_path(damaged, next(store.layout.chunks_of(1, 1)).shard)

    path.write_bytes(path.read_bytes()[:keep])

    expected = [(sample, BadKind.SHARD_INDEX) for sample in complete_in_block_of(store, 1)]
    assert found(damaged) == expected


@pytest.mark.parametrize("sample", [1, 4])
def test_a_missing_shard_names_every_sample_of_the_block(damaged: Path, sample: int) -> None:
    store = Store.open(damaged)

    shard_path(damaged, next(store.layout.chunks_of(sample, 1)).shard).unlink()

    expected = [(other, BadKind.MISSING_SHARD) for other in complete_in_block_of(store, sample)]
    assert found(damaged) == expected


def test_a_chunk_that_is_not_in_the_shard_names_its_sample(damaged: Path) -> None:
    store = Store.open(damaged)

    rewrite_shard(store, 1, {next(store.layout.chunks_of(1, 1)).chunk: None})

    assert found(damaged) == [(1, BadKind.MISSING_CHUNK)]


def test_other_states_than_those_committed_have_another_digest(damaged: Path) -> None:
    store = Store.open(damaged)
    other = finite_states(store, 7)  # as long as sample 1, which is one whole chunk

    rewrite_shard(store, 1, {next(store.layout.chunks_of(1, 1)).chunk: other})

    assert found(damaged) == [(1, BadKind.DIGEST)]


def test_padding_that_is_not_nan_is_found(damaged: Path) -> None:
    store = Store.open(damaged)
    chunk = np.zeros(store.layout.geometry.chunk_shape, store.bits)
    chunk[:3] = finite_states(store, 0)  # sample 0 has 3 rows, a chunk has 4

    rewrite_shard(store, 0, {next(store.layout.chunks_of(0, 1)).chunk: chunk})

    assert found(damaged) == [(0, BadKind.PADDING)]


@pytest.mark.parametrize(
    ("bits", "kind"),
    [
        (0x7F80, BadKind.NOT_FINITE),  # infinity
        (0xFFC1, BadKind.NOT_FINITE),  # a NaN with a payload
        (0x0000, BadKind.ZERO_ROW),
        (0x8000, BadKind.ZERO_ROW),  # -0.0
    ],
)
def test_a_row_that_no_model_gives_is_found_though_it_was_committed_so(
    directory: Path, bits: int, kind: BadKind
) -> None:
    store = make_store(directory / "store.zarr", [3, 20, 5])
    states = {sample: finite_states(store, sample) for sample in range(3)}
    states[1][17, 2] = bits

    commit_states(store, states)

    report = verify_store(store.path)
    assert [(bad.sample, bad.kind) for bad in report.bad] == [(1, kind)]
    assert "row 17" in report.bad[0].detail


def test_a_row_of_zeros_of_both_signs_is_found(directory: Path) -> None:
    store = make_store(directory / "store.zarr", [20])
    states = finite_states(store, 0)
    states[17, 2, ::2], states[17, 2, 1::2] = 0x0000, 0x8000

    commit_states(store, {0: states})

    assert [bad.kind for bad in verify_store(store.path).bad] == [BadKind.ZERO_ROW]


def test_single_zeros_are_nothing_bad(directory: Path) -> None:
    store = make_store(directory / "store.zarr", [3])
    states = finite_states(store, 0)
    states[1, 1, :-1] = 0

    commit_states(store, {0: states})

    assert verify_store(store.path).ok


def test_a_damaged_shard_without_a_complete_sample_is_bad_but_names_no_sample(
    damaged: Path,
) -> None:
    store = Store.open(damaged)
    block = store.layout.block(store.layout.block_of(4))
    path = shard_path(damaged, block.shards[0])
    clear_bits(store, [4])
    flip(path, path.stat().st_size - index_bytes(store.layout.geometry.shard_chunks))

    assert found(damaged) == [(None, BadKind.SHARD_INDEX)]


def clear_bits(store: Store, samples: list[int]) -> None:
    """Make samples pending as a careful program would: with valid checksums, digests too."""
    complete, digest = store.completion().complete, store.completion().digest
    complete[samples], digest[samples] = False, 0
    store._arrays.write("complete", slice(None), complete)
    store._arrays.write("digest", slice(None), digest)


def test_an_unreadable_shard_is_reported_and_not_a_crash(damaged: Path) -> None:
    store = Store.open(damaged)
    path = shard_path(damaged, next(store.layout.chunks_of(4, 1)).shard)
    path.unlink()

    with socket.socket(socket.AF_UNIX) as nothing_to_read:  # open(2) fails on it, also for root
        nothing_to_read.bind(str(path))

    assert found(damaged) == [(4, BadKind.UNREADABLE)]

"""Nothing is wrong with these stores, and verify leaves them as they are."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.codec import CODEC_NAMES, CodecName
from hsstore.create import LayoutOptions
from hsstore.errors import InputError
from hsstore.layout import Layout
from hsstore.report import BadKind
from hsstore.shard import shard_path
from hsstore.store import Store
from hsstore.tasks import Where
from hsstore.testing.finite import MIXED_COMPLETE, MIXED_LENGTHS, commit_states, finite_states
from hsstore.testing.stores import make_model, make_store
from hsstore.verify import SampleChoice, VerifyOptions, verify_store
from hsstore.verify.block import BlockTask, check_block
from hsstore.verify.html import render

if TYPE_CHECKING:
    from pathlib import Path


def test_a_healthy_store_is_ok_and_everything_is_counted(healthy: Path) -> None:
    report = verify_store(healthy)

    assert report.bad == ()
    assert report.ok
    assert (report.samples, report.checked, report.pending, report.failed) == (13, 10, 2, 1)
    assert report.bytes_checked == sum(MIXED_LENGTHS[i] for i in MIXED_COMPLETE) * 3 * 16 * 2


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_a_store_of_any_codec_is_checked_padding_included(
    directory: Path, codec: CodecName
) -> None:
    options = LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=6, codec=codec)
    store = make_store(directory / "store.zarr", [3, 20, 5], options=options)
    commit_states(store, {sample: finite_states(store, sample) for sample in range(3)})
    shard = shard_path(store.path, 0)

    healthy = verify_store(store.path)
    damaged = bytearray(shard.read_bytes())
    damaged[40] ^= 1
    shard.write_bytes(damaged)

    assert (healthy.ok, healthy.checked) == (True, 3)
    assert [(bad.sample, bad.kind) for bad in verify_store(store.path).bad] == [(0, BadKind.CHUNK)]


def test_a_store_without_a_complete_sample_is_ok_with_nothing_checked(directory: Path) -> None:
    store = make_store(directory / "store.zarr", [3, 20, 1])

    report = verify_store(store.path)

    assert report.ok
    assert (report.checked, report.pending, report.bytes_checked) == (0, 3, 0)


@pytest.mark.parametrize(
    "options",
    [
        VerifyOptions(),
        VerifyOptions(where=Where(processes=1)),
        VerifyOptions(sample=SampleChoice("50%")),
    ],
)
def test_verify_writes_nothing_at_all(healthy: Path, options: VerifyOptions) -> None:
    def everything() -> dict[str, tuple[int | bytes, ...]]:
        return {
            str(path): (
                path.stat().st_mtime_ns,
                path.stat().st_ctime_ns,
                path.stat().st_ino,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in [healthy.parent, *healthy.parent.rglob("*")]
        }

    before = everything()

    report = verify_store(healthy, options)
    render(report)

    assert report.ok
    assert everything() == before


def test_progress_counts_every_block_once(healthy: Path) -> None:
    calls: list[tuple[int, int]] = []

    options = VerifyOptions(where=Where(workers=2))
    verify_store(healthy, options, lambda done, total: calls.append((done, total)))

    blocks = Store.open(healthy).layout.blocks
    assert calls == [(done, blocks) for done in range(1, blocks + 1)]


def test_a_place_without_a_store_is_wrong_input_and_is_not_created(directory: Path) -> None:
    with pytest.raises(InputError, match="no hsstore store is there"):
        verify_store(directory / "nothing")

    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("hidden", [16, 2048])
def test_one_slot_a_chunk_and_all_slots_a_chunk_are_both_checked(
    directory: Path, hidden: int
) -> None:
    store = make_store(directory / "store.zarr", [3, 20, 5], model=make_model(hidden=hidden))
    commit_states(store, {sample: finite_states(store, sample) for sample in range(3)})

    report = verify_store(store.path)

    assert store.spec.layout.chunk_slots == (3 if hidden == 16 else 1)
    assert report.bad == ()
    assert report.checked == 3


def test_a_block_is_checked_from_its_pickle_in_memory_of_a_few_chunks(directory: Path) -> None:
    options = LayoutOptions(chunk_rows=64, shard_rows=8192, span_samples=1)
    store = make_store(
        directory / "store.zarr", [8000], model=make_model(hidden=512), options=options
    )
    commit_states(store, {0: finite_states(store, 0)})
    layout = store.layout
    alone = Layout(layout.geometry, layout.row_start, layout.block_sample, layout.block_shard)
    task = BlockTask(
        root=store.path,
        dtype="bfloat16",
        codec=store.spec.codec,
        layout=alone,
        first_sample=0,
        shards=range(1),
        length=store.length,
        completion=store.completion(),
        damaged=frozenset(),
        runs=(),
    )
    pickled = pickle.dumps(task)
    chunk_bytes = 64 * layout.geometry.row_bytes
    tracemalloc.start()

    result = check_block(pickle.loads(pickled))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.findings == []
    assert result.tokens_checked == 8000
    assert peak < 12 * chunk_bytes < 8000 * layout.geometry.row_bytes / 8
    assert np.prod(store.payload.read(0).shape) == 8000 * 3 * 512

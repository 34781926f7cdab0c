"""Large stores and many findings: memory is bounded, and the report stays readable."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.create import LayoutOptions, create_store
from hsstore.dataset import TokenizedDataset
from hsstore.report import BadKind
from hsstore.shard import shard_path
from hsstore.store import Store
from hsstore.tasks import Where
from hsstore.testing.finite import commit_states, finite_states
from hsstore.testing.stores import make_model, make_store
from hsstore.verify import VerifyOptions, verify_store
from hsstore.verify.finding import Finding, Ledger
from hsstore.verify.html import render
from hsstore.verify.plan import check_plan
from hsstore.verify.report import Found, report
from tests.verify.cluster import dask_cluster

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = 2


@pytest.mark.parametrize("lengths", [[60] * 400, [24_000]])
def test_memory_is_bounded_by_workers_times_one_sample_of_few_rows_not_by_a_block(
    directory: Path, lengths: list[int]
) -> None:
    options = LayoutOptions(chunk_rows=64, shard_rows=1 << 15, span_samples=400)
    path = directory / "store.zarr"
    store = make_store(path, lengths, model=make_model(hidden=512), options=options)
    one = finite_states(store, 0)
    commit_states(store, dict.fromkeys(range(len(lengths)), one))
    assert store.layout.blocks == 1
    row_of_chunks = 64 * store.layout.geometry.row_bytes
    block_bytes = one.nbytes * len(lengths)
    del one, store
    verify_store(path)  # what is imported and cached
    tracemalloc.start()

    found = verify_store(path, VerifyOptions(where=Where(workers=WORKERS)))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.bytes_checked == block_bytes
    assert peak < WORKERS * 4 * row_of_chunks + (3 << 20) < block_bytes / 10


def test_a_worker_that_is_killed_in_mid_run_costs_nothing_but_time(directory: Path) -> None:
    options = LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=40)
    store = make_store(directory / "store.zarr", [9] * 120, options=options)
    commit_states(store, {sample: finite_states(store, sample) for sample in range(120)})
    for sample in (7, 77):
        path = shard_path(store.path, next(store.layout.chunks_of(sample, 1)).shard)
        path.write_bytes(path.read_bytes()[:-1])
    expected = verify_store(store.path)

    with dask_cluster() as cluster:

        def kill_one(done: int, _: int) -> None:
            if done == 10:
                cluster.kill("worker-1")

        options_there = VerifyOptions(where=Where(scheduler=cluster.address))
        found = verify_store(store.path, options_there, kill_one)

    assert found == expected
    assert found.checked == 120
    assert {bad.kind for bad in found.bad} == {BadKind.SHARD_INDEX}


def test_samples_of_the_same_id_are_found_among_many(directory: Path) -> None:
    store = make_store(directory / "store.zarr", [1] * 3000)
    ids = store.plan_array("sample_id").copy()
    ids[[5, 2999]] = ids[[17, 17]]
    ids[1000:1100] = ids[1000]
    store._arrays.write("sample_id", slice(None), ids)

    found = check_plan(Store.open(store.path))
    named = {one.sample: one.detail.split()[-1] for one in found if one.sample is not None}

    assert named == {
        17: "5",
        2999: "5",
        **dict.fromkeys(range(1001, 1100), "1000"),
    }


def test_the_plan_is_read_in_pieces_whatever_their_size(
    healthy: Path, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(damaged)
    split, ids = store.plan_array("split").copy(), store.plan_array("sample_id").copy()
    split[11], ids[12] = 9, ids[2]
    store._arrays.write("split", slice(None), split)
    store._arrays.write("sample_id", slice(None), ids)
    whole = verify_store(damaged)

    for rows in (1, 4, 7):
        monkeypatch.setattr("hsstore.verify.plan.AT_ONCE", rows)

        assert verify_store(healthy).ok
        assert verify_store(damaged) == whole
    assert {bad.sample for bad in whole.bad} == {None, 11, 12}


def test_memory_of_the_plan_checks_is_a_few_bytes_a_sample(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, chunk_bytes = 500_000, 6_553_600
    dataset = short_samples(samples)
    store = create_store(
        directory / "store.zarr",
        dataset,
        make_model(),
        norm_weight=np.ones(16, np.float32),
        options=LayoutOptions(chunk_rows=1, shard_rows=1 << 14, span_samples=1 << 12),
    )
    monkeypatch.setattr("hsstore.verify.plan.AT_ONCE", 1 << 14)
    tracemalloc.start()

    assert list(check_plan(store)) == []

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * samples + 2 * chunk_bytes < dataset.sample_id.nbytes


def short_samples(count: int) -> TokenizedDataset:
    """Make samples of one token with ids of 100 bytes: no loop runs over them."""
    ids = np.arange(count).astype("S100").view(np.uint8).reshape(count, 100)
    return TokenizedDataset(
        length=np.ones(count, np.int64),
        input_ids=np.arange(count, dtype=np.int32),
        loss_mask=np.ones(count, np.uint8),
        sample_id=ids,
        split=np.zeros(count, np.uint8),
        split_names=("train",),
        metadata=np.zeros(0, np.uint8),
        metadata_end=np.zeros(count, np.int64),
    )


LISTED = 20_000
BAD = 100_000


@pytest.fixture
def many(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Found:
    """Give a result with more bad samples than are listed, and one of another kind."""
    monkeypatch.setattr("hsstore.verify.finding.MAX_LISTED", LISTED)
    found = Found(directory / "store.zarr", None, Ledger(BAD))
    found.ledger.add(
        Finding(sample, BadKind.MISSING_SHARD, f"c.{sample // 1000}.0.0: shard is missing")
        for sample in range(BAD)
    )
    found.ledger.add([Finding(None, BadKind.RUN, "<script>alert('record')</script>")])
    return found


def test_any_number_of_bad_samples_is_counted_and_shown_in_a_few_lines(
    many: Found, capsys: pytest.CaptureFixture[str]
) -> None:
    from hsstore.cli.verify import _show  # noqa: PLC0415  # what the command prints

    found = report(many)
    _show(found)

    lines = capsys.readouterr().out.splitlines()
    assert not found.ok
    assert len(found.bad) == LISTED
    assert sum(count.findings for count in found.kinds) == BAD + 1
    assert len(lines) < 40
    assert any("missing-shard" in line and "100,000" in line for line in lines)
    assert "and 99,981 more: --json shows the first 20,000" in lines
    assert lines[-1].startswith("100,001 bad")
    assert many.ledger.repairable.all()


def test_the_html_of_many_bad_samples_is_small_and_nothing_in_it_is_markup_of_the_store(
    many: Found,
) -> None:
    many.ledger.listed.insert(0, Finding(None, BadKind.RUN, "<script>alert('record')</script>"))

    html = render(report(many))

    assert len(html) < 1_000_000
    assert "100,000" in html
    assert "&lt;script&gt;" in html
    assert "<script" not in html


def test_coverage_and_lengths_have_a_fixed_size(directory: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 2500).tolist()
    store = make_store(directory / "store.zarr", lengths)
    commit_states(store, {0: finite_states(store, 0)})

    found = verify_store(store.path)

    assert found.coverage is not None
    assert found.lengths is not None
    assert (found.coverage.samples_a_piece, len(found.coverage.complete)) == (3, 834)
    assert sum(found.coverage.complete) == sum(found.lengths.complete) == 1
    assert sum(found.lengths.samples) == 2500
    assert len(found.lengths.samples) < 40
    assert found.lengths.edges[0] <= min(lengths) <= max(lengths) < found.lengths.edges[-1]
    assert json.loads(found.model_dump_json())["coverage"]["samples_a_piece"] == 3

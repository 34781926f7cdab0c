"""Records of runs: each in a group of its own inside the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import zarr

from hsstore.arrays import Arrays
from hsstore.spec import RunRecord
from hsstore.store import Store
from hsstore.testing.stores import make_store

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = [3, 5]


def test_the_golden_states_of_a_run_lie_in_its_group(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", LENGTHS)
    bits = np.random.default_rng(0).integers(0, 1 << 16, (2, 3, 16), dtype=np.uint16)

    store.record_run(make_record("a"), bits)

    states = np.asarray(zarr.open_array(store.path / "runs" / "a" / "golden", mode="r")[:])
    np.testing.assert_array_equal(states.view(np.uint16), bits)
    assert Store.open(store.path).runs() == [make_record("a")]


def make_record(run: str, **fields: str) -> RunRecord:
    return RunRecord(
        run=run,
        started=fields.pop("started", "2026-01-02"),
        **fields,
        host="h",
        pid=1,
        hsstore_version="0",
        capture_hash="0123",
        engine="embedded",
        engine_version="1",
        server_instance="i",
        server_flags={},
        options={},
    )


def test_runs_are_recorded_and_replaced_by_their_name(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", LENGTHS)
    record, ended = make_record("b"), make_record("b", result="done")
    earlier = make_record("a", started="2026-01-01")

    for each in (record, ended, earlier):
        store.record_run(each)

    assert Store.open(store.path).runs() == [earlier, ended]


def test_a_run_that_was_killed_as_it_began_its_record_left_none(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", LENGTHS)
    store.record_run(make_record("a"))
    (store.path / "runs" / "b").mkdir()

    assert Store.open(store.path).runs() == [make_record("a")]


def test_a_record_with_fields_of_a_newer_version_is_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", LENGTHS)
    newer = make_record("a").model_dump(mode="json") | {"weather": "fine"}
    Arrays.open(store.path).put_group("runs/a", {"hsstore_run": newer})

    assert Store.open(store.path).runs() == [make_record("a")]

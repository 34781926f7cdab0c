"""What lies in a store that should not, and states that no model gives: planted, and named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hsstore.claims import Claims
from hsstore.report import BadKind, NoteKind
from hsstore.seal import seal
from hsstore.shard import shard_path
from hsstore.shard.reader import ShardReader
from hsstore.shard.writer import ShardWriter
from hsstore.store import Store
from hsstore.testing.finite import commit_states, finite_states
from hsstore.testing.stores import make_model, make_store
from hsstore.verify import SampleChoice, VerifyOptions, verify_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    Spoil = Callable[[npt.NDArray[np.uint16]], None]

ONE_AND_A_HALF = 0x3FC0


def set_constant(states: npt.NDArray[np.uint16]) -> None:
    states[17, 1] = ONE_AND_A_HALF


def set_equal(states: npt.NDArray[np.uint16]) -> None:
    states[:, 2] = states[:, 0]


@pytest.mark.parametrize("hidden", [16, 2048])
@pytest.mark.parametrize(
    ("spoil", "kind", "detail"),
    [
        (set_constant, BadKind.CONSTANT_ROW, "a slot is the same number throughout in row 17"),
        (set_equal, BadKind.EQUAL_SLOTS, "slots 0 and 2 are equal in every row"),
    ],
)
def test_states_that_no_model_gives_are_named(
    directory: Path, hidden: int, spoil: Spoil, kind: BadKind, detail: str
) -> None:
    store = make_store(directory / "store.zarr", [3, 20, 5], model=make_model(hidden=hidden))
    states = {sample: finite_states(store, sample) for sample in range(3)}
    spoil(states[1])

    commit_states(store, states)

    report = verify_store(store.path)
    assert [(bad.sample, bad.kind, bad.detail) for bad in report.bad] == [(1, kind, detail)]


@pytest.mark.parametrize("row", [0, 19])
def test_slots_that_are_equal_in_all_rows_but_one_are_nothing_bad(
    directory: Path, row: int
) -> None:
    store = make_store(directory / "store.zarr", [20])
    states = finite_states(store, 0)
    kept = states[row].copy()
    states[:, 2] = states[:, 0]
    states[row] = kept

    commit_states(store, {0: states})

    assert verify_store(store.path).ok


def test_many_wrong_rows_are_counted_and_the_first_is_named(directory: Path) -> None:
    store = make_store(directory / "store.zarr", [20])
    states = finite_states(store, 0)
    states[3:17, 1] = 0

    commit_states(store, {0: states})

    assert verify_store(store.path).bad[0].detail == "a slot is all zero in 14 rows, first in row 3"


def test_a_chunk_that_belongs_to_no_sample_is_found(damaged: Path) -> None:
    store = Store.open(damaged)
    path, count = (
        shard_path(store.path, store.layout.shards - 1),
        store.layout.geometry.shard_chunks,
    )
    old, writer = ShardReader(path, count), ShardWriter(path, "test", count)
    assert [chunk for chunk in range(count) if old.has(chunk)] == [0]
    for chunk in (0, 2):
        writer.append(chunk, old.read(0))
    writer.seal()
    writer.publish()

    report = verify_store(damaged)

    assert [(bad.sample, bad.kind) for bad in report.bad] == [(None, BadKind.PADDING)]
    assert "1 chunks, the first 2, belong to no sample" in report.bad[0].detail


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "copy/zarr.json",
        "hidden_states/c.99.0.0",
        "hidden_states/c.0.0.0.bak",
        "complete/c.3",
        "complete/c.01",
        "length/c.0.0",
        "runs/README",
        "runs/r1/golden.old",
    ],
)
def test_a_file_that_is_no_part_of_a_store_is_named(damaged: Path, name: str) -> None:
    path = damaged / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"?")

    report = verify_store(damaged)

    assert [(bad.sample, bad.kind) for bad in report.bad] == [(None, BadKind.UNEXPECTED_FILE)]
    assert report.bad[0].detail.split()[0] in {name, name.partition("/")[0]}


def test_a_file_that_is_removed_while_it_is_open_on_a_network_file_system_is_nothing_bad(
    damaged: Path,
) -> None:
    (damaged / "hidden_states" / ".nfs0000000001").write_bytes(b"")

    assert verify_store(damaged).ok


def test_what_a_dead_run_did_not_publish_is_remarked_upon_and_not_bad(damaged: Path) -> None:
    (damaged / "hidden_states/c.1.0.0.dead.partial").write_bytes(bytes(1000))
    (damaged / "complete/c.0.0123.partial").write_bytes(b"")

    report = verify_store(damaged)

    assert report.ok
    assert [note.kind for note in report.notes] == [NoteKind.LEFTOVER]
    assert "2 files of 0.00 GB" in report.notes[0].detail
    assert "hidden_states/c.1.0.0.dead.partial" in report.notes[0].detail


def test_spans_that_a_dead_run_still_claims_are_remarked_upon(damaged: Path) -> None:
    claims = Claims(Store.open(damaged), "run-1")
    claims.take([0, 2])
    claims._held.clear()  # as if it had been killed: the claims stay, the lock is free
    claims.release()

    report = verify_store(damaged)

    assert report.ok
    assert [note.kind for note in report.notes] == [NoteKind.CLAIM]
    assert report.notes[0].detail.startswith("2 spans are claimed by run run-1 (pid ")


def test_a_run_that_is_writing_now_is_remarked_upon_and_its_files_are_no_leftovers(
    damaged: Path,
) -> None:
    with Claims(Store.open(damaged), "run-1") as claims:
        claims.take([0])
        (damaged / "hidden_states/c.1.0.0.run-1.partial").write_bytes(b"")

        report = verify_store(damaged)

    assert report.ok
    assert [note.kind for note in report.notes] == [NoteKind.WRITER]
    assert "is writing 1 spans" in report.notes[0].detail


def test_an_array_whose_shape_contradicts_the_attributes_is_named_though_it_is_sealed(
    damaged: Path,
) -> None:
    path = damaged / "norm_weight" / "zarr.json"
    document = json.loads(path.read_text())
    document["shape"] = [17]
    path.write_text(json.dumps(document))
    root = json.loads((damaged / "zarr.json").read_text())
    spec = seal(Store.open(damaged).spec, damaged)
    root["attributes"]["hsstore"] = spec.model_dump(mode="json")
    (damaged / "zarr.json").write_text(json.dumps(root))

    report = verify_store(damaged)

    details = {bad.kind: bad.detail for bad in report.bad}
    assert (
        details[BadKind.METADATA]
        == "norm_weight/zarr.json has shape [17], the attributes give [16]"
    )


def test_norms_are_profiled_by_slot(directory: Path) -> None:
    store = make_store(directory / "store.zarr", [150, 20])
    states = {sample: finite_states(store, sample) for sample in range(2)}
    for bits in states.values():
        bits[:, 0], bits[:, 1] = 0x4100, 0x3F00  # 8.0 and 0.5
        bits[:, :2, 3] += 1  # a row of one number is no state

    commit_states(store, states)

    norms = verify_store(store.path).norms
    assert [(slot.slot, slot.layer, slot.rows) for slot in norms] == [
        (0, 0, 2 + 1),
        (1, 3, 2 + 1),
        (2, None, 2 + 1),
    ]
    assert norms[0].median == pytest.approx(8, rel=0.06)
    assert norms[1].largest == pytest.approx(0.5, rel=0.06)
    assert sum(norms[2].histogram) == 3


def test_a_part_of_the_samples_is_chosen_by_seed(healthy: Path) -> None:
    def checked(asked: str, seed: int) -> int:
        options = VerifyOptions(sample=SampleChoice(asked, seed))
        report = verify_store(healthy, options)
        assert report.ok
        assert report.sampling is not None
        assert report.sampling.chosen == report.checked
        return report.bytes_checked

    assert checked("100%", 0) == verify_store(healthy).bytes_checked
    assert checked("3", 5) == checked("30%", 5)
    assert len({checked("2", seed) for seed in range(8)}) > 1


def test_a_quick_look_finds_what_is_wrong_with_the_samples_it_takes(damaged: Path) -> None:
    store = Store.open(damaged)
    shard_path(damaged, next(store.layout.chunks_of(4, 1)).shard).unlink()

    named = set()
    for seed in range(40):
        options = VerifyOptions(sample=SampleChoice("1", seed))
        report = verify_store(damaged, options)
        assert report.checked == 1
        named |= {bad.sample for bad in report.bad}

    assert named == {4}

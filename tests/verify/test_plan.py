"""Damage to what was fixed when the store was created."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hsstore.errors import InputError
from hsstore.report import BadKind
from hsstore.store import Store
from hsstore.verify import verify_store
from hsstore.verify.plan import HASHED

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt


def overwrite(path: Path, name: str, values: npt.NDArray[Any]) -> None:
    """Write an array through Zarr: with valid checksums, and without a right to."""
    Store.open(path)._arrays.write(name, slice(None), values)


@pytest.mark.parametrize(
    "name", ["row_start", "input_ids", "loss_mask", "sample_id", "split", "length"]
)
def test_a_plan_array_that_was_rewritten_does_not_match_the_plan_hash(
    damaged: Path, name: str
) -> None:
    values = Store.open(damaged).plan_array(name).copy()
    values[0] ^= 1

    overwrite(damaged, name, values)

    report = verify_store(damaged)
    assert not report.ok
    assert BadKind.PLAN in {bad.kind for bad in report.bad}


def test_a_wrong_row_start_names_its_sample(damaged: Path) -> None:
    row_start = Store.open(damaged).plan_array("row_start").copy()
    row_start[7] += 4

    overwrite(damaged, "row_start", row_start)

    assert (7, BadKind.PLAN) in {(bad.sample, bad.kind) for bad in verify_store(damaged).bad}


def test_a_second_sample_of_the_same_id_is_named(damaged: Path) -> None:
    ids = Store.open(damaged).plan_array("sample_id").copy()
    ids[7] = ids[3]

    overwrite(damaged, "sample_id", ids)

    report = verify_store(damaged)
    details = {bad.sample: bad.detail for bad in report.bad}
    assert details[7] == "sample_id is the same as that of sample 3"


def test_a_split_without_a_name_names_its_sample(damaged: Path) -> None:
    split = Store.open(damaged).plan_array("split").copy()
    split[5] = 9

    overwrite(damaged, "split", split)

    details = {bad.sample: bad.detail for bad in verify_store(damaged).bad}
    assert details[5] == "split 9 has no name"


@pytest.mark.parametrize("lengths", [[0] + [5] * 12, [1] * 13])
def test_lengths_that_cannot_be_end_the_check_with_the_reason(
    damaged: Path, lengths: list[int]
) -> None:
    overwrite(damaged, "length", np.array(lengths, np.int32))

    report = verify_store(damaged)

    assert [bad.kind for bad in report.bad] == [BadKind.PLAN]
    assert "the attributes say 13 samples of 63" in report.bad[0].detail
    assert report.checked == 0


@pytest.mark.parametrize("name", [*HASHED, "metadata_end", "metadata", "norm_weight"])
def test_a_missing_chunk_file_of_the_plan_is_found(damaged: Path, name: str) -> None:
    next((damaged / name).glob("c.*")).unlink()

    report = verify_store(damaged)

    assert BadKind.PLAN in {bad.kind for bad in report.bad}


def test_damaged_tokens_name_the_samples_of_that_chunk(damaged: Path) -> None:
    path = damaged / "input_ids" / "c.0"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(bytes(data))

    report = verify_store(damaged)

    assert [bad.kind for bad in report.bad] == [BadKind.PLAN]
    assert "samples 0 to 12" in report.bad[0].detail
    assert report.checked == 10  # the states are checked all the same


@pytest.mark.parametrize("name", ["hidden_states", "length", "complete", "norm_weight"])
def test_a_changed_zarr_json_is_found_though_zarr_accepts_it(damaged: Path, name: str) -> None:
    path = damaged / name / "zarr.json"
    path.write_text(path.read_text().replace("sample", "simple").replace("hidden", "hudden"))

    report = verify_store(damaged)

    assert [bad.kind for bad in report.bad] == [BadKind.METADATA]
    assert report.bad[0].detail == f"{name}/zarr.json has changed since the store was created"


def test_a_changed_attribute_is_reported(damaged: Path) -> None:
    path = damaged / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["hsstore"]["model"]["norm"]["epsilon"] = 1e-6
    path.write_text(json.dumps(document))

    report = verify_store(damaged)

    assert not report.ok
    assert [bad.kind for bad in report.bad] == [BadKind.METADATA]
    assert "attributes have changed" in report.bad[0].detail


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_root_that_is_not_zarr_is_reported(damaged: Path, text: str) -> None:
    (damaged / "zarr.json").write_text(text)

    report = verify_store(damaged)

    assert [bad.kind for bad in report.bad] == [BadKind.METADATA]
    assert "zarr.json is damaged" in report.bad[0].detail


@pytest.mark.parametrize(
    ("hsstore", "message"),
    [(None, "not an hsstore store"), ({"format": "hsstore/9"}, "this version reads 'hsstore/1'")],
)
def test_another_kind_of_store_is_wrong_input(
    damaged: Path, hsstore: dict[str, str] | None, message: str
) -> None:
    path = damaged / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"] = {"hsstore": hsstore} if hsstore else {}
    path.write_text(json.dumps(document))

    with pytest.raises(InputError, match=message):
        verify_store(damaged)


def test_a_damaged_record_of_a_run_is_reported(damaged: Path) -> None:
    path = damaged / "runs" / "r1" / "zarr.json"
    path.write_text(path.read_text().replace('"pid"', '"pod"'))

    report = verify_store(damaged)

    assert [bad.kind for bad in report.bad] == [BadKind.RUN]
    assert "record of run r1" in report.bad[0].detail


@pytest.mark.parametrize("name", ["metadata", "input_ids", "length"])
def test_an_emptied_chunk_file_is_found_though_zarr_reads_fill_values(
    damaged: Path, name: str
) -> None:
    file = next((damaged / name).glob("c.*"))

    file.write_bytes(b"")

    assert not verify_store(damaged).ok

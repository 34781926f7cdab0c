"""Wrong values in `complete`, `failed` and `digest`: found, and the sample named."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import google_crc32c
import pytest

from hsstore.report import BadKind
from hsstore.store import Store
from hsstore.testing.finite import MIXED_COMPLETE, make_run_record
from hsstore.verify import verify_store

if TYPE_CHECKING:
    from pathlib import Path

SPAN = 6
"""Samples in a span of the mixed store."""
SIZES = {"complete": 1, "failed": 1, "digest": 8}


def set_value(store: Path, name: str, sample: int, value: int, *, fix_crc: bool) -> None:
    """Overwrite one value, as a flipped bit does, or as a program that writes Zarr does."""
    path = store / name / f"c.{sample // SPAN}"
    data = bytearray(path.read_bytes())
    start = sample % SPAN * SIZES[name]
    data[start : start + SIZES[name]] = value.to_bytes(SIZES[name], "little")
    if fix_crc:
        data[-4:] = struct.pack("<I", google_crc32c.value(bytes(data[:-4])))
    path.write_bytes(bytes(data))


def found(store: Path) -> list[tuple[int | None, BadKind]]:
    """Return what verify names."""
    return [(bad.sample, bad.kind) for bad in verify_store(store).bad]


@pytest.mark.parametrize("fix_crc", [False, True])
@pytest.mark.parametrize("sample", MIXED_COMPLETE)
def test_a_lost_completion_bit_names_its_sample(
    damaged: Path, sample: int, *, fix_crc: bool
) -> None:
    set_value(damaged, "complete", sample, 0, fix_crc=fix_crc)

    assert found(damaged) == [(sample, BadKind.PAYLOAD_WITHOUT_BIT)]


@pytest.mark.parametrize("fix_crc", [False, True])
@pytest.mark.parametrize("sample", [8, 11])
def test_an_invented_completion_bit_names_its_sample(
    damaged: Path, sample: int, *, fix_crc: bool
) -> None:
    set_value(damaged, "complete", sample, 1, fix_crc=fix_crc)

    report = verify_store(damaged)
    assert {bad.sample for bad in report.bad} == {sample}
    assert report.bad[0].kind in {BadKind.MISSING_CHUNK, BadKind.MISSING_SHARD}


def test_a_bit_that_became_another_number_names_its_sample(damaged: Path) -> None:
    set_value(damaged, "complete", 3, 1 | 1 << 6, fix_crc=False)

    assert found(damaged) == [(3, BadKind.COMPLETION)]


@pytest.mark.parametrize("fix_crc", [False, True])
@pytest.mark.parametrize("sample", MIXED_COMPLETE)
def test_a_wrong_digest_names_its_sample(damaged: Path, sample: int, *, fix_crc: bool) -> None:
    right = int(Store.open(damaged).completion().digest[sample])

    set_value(damaged, "digest", sample, right ^ 1 << 40, fix_crc=fix_crc)

    assert found(damaged) == [(sample, BadKind.DIGEST)]


def test_a_flipped_bit_in_the_digest_of_a_pending_sample_names_it(damaged: Path) -> None:
    set_value(damaged, "digest", 8, 1 << 40, fix_crc=False)

    assert found(damaged) == [(8, BadKind.COMPLETION)]


@pytest.mark.parametrize("fix_crc", [False, True])
def test_a_complete_sample_marked_as_failed_is_named(damaged: Path, *, fix_crc: bool) -> None:
    set_value(damaged, "failed", 7, 1, fix_crc=fix_crc)

    assert found(damaged) == [(7, BadKind.COMPLETE_AND_FAILED)]


def test_where_no_sample_shows_to_be_wrong_the_span_is_named(damaged: Path) -> None:
    set_value(damaged, "failed", 8, 1, fix_crc=False)  # could be an honest failure

    report = verify_store(damaged)
    assert [(bad.sample, bad.kind) for bad in report.bad] == [(None, BadKind.COMPLETION)]
    assert "failed/c.1" in report.bad[0].detail
    assert "samples 6 to 11" in report.bad[0].detail


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("position", [-1, -4, -6])
def test_damage_to_a_crc_or_behind_the_last_sample_is_found(
    damaged: Path, name: str, position: int
) -> None:
    path = damaged / name / "c.2"  # the last span has one sample
    data = bytearray(path.read_bytes())
    data[position] ^= 4

    path.write_bytes(bytes(data))

    assert found(damaged) == [(None, BadKind.COMPLETION)]


def test_a_missing_bitmap_chunk_names_every_sample_that_has_its_states(damaged: Path) -> None:
    (damaged / "complete" / "c.0").unlink()

    expected = [(sample, BadKind.PAYLOAD_WITHOUT_BIT) for sample in MIXED_COMPLETE if sample < SPAN]
    assert found(damaged) == expected


def test_a_missing_digest_chunk_names_every_complete_sample(damaged: Path) -> None:
    (damaged / "digest" / "c.0").unlink()

    assert found(damaged) == [
        (sample, BadKind.DIGEST) for sample in MIXED_COMPLETE if sample < SPAN
    ]


def test_a_run_that_was_killed_before_its_bitmap_left_pending_samples_and_nothing_bad(
    damaged: Path,
) -> None:
    store = Store.open(damaged)
    store.record_run(make_run_record("r2", "2026-01-03T00:00:00+00:00", ended=False))
    set_value(damaged, "complete", 6, 0, fix_crc=True)

    report = verify_store(damaged)

    assert report.ok
    assert report.pending == 3


def test_what_a_killed_run_left_is_no_excuse_for_the_shard_of_a_later_one(damaged: Path) -> None:
    store = Store.open(damaged)
    store.record_run(make_run_record("r2", "2026-01-03T00:00:00+00:00", ended=False))
    store.record_run(make_run_record("r3", "2026-01-04T00:00:00+00:00", ended=True))
    set_value(damaged, "complete", 6, 0, fix_crc=True)

    assert found(damaged) == [(6, BadKind.PAYLOAD_WITHOUT_BIT)]


def test_states_published_before_their_digest_are_pending(damaged: Path) -> None:
    set_value(damaged, "complete", 6, 0, fix_crc=True)
    set_value(damaged, "digest", 6, 0, fix_crc=True)

    assert found(damaged) == []


def test_two_damaged_arrays_still_name_the_sample(damaged: Path) -> None:
    set_value(damaged, "complete", 2, 0, fix_crc=False)
    set_value(damaged, "failed", 2, 1, fix_crc=False)

    named = {bad.sample for bad in verify_store(damaged).bad}

    assert named == {2}

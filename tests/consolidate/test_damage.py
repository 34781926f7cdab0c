"""Samples whose source is damaged are named and stay pending; all others arrive."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.consolidate import Options, consolidate
from hsstore.shard import shard_path
from hsstore.shard.reader import ShardReader
from hsstore.verify import verify_store
from tests.consolidate.parts import Named, make_part

if TYPE_CHECKING:
    from pathlib import Path

    from hsstore.store import Store
from hsstore.testing.finite import commit_states

SAMPLES = [Named(f"s{number}", length=8) for number in range(12)]
"""Two to a shard of 16 rows."""
BAD = 5
WAYS = {
    "linked": Options(),
    "copied": Options(shard_rows=32),
    "encoded": Options(codec="max"),
}


def flip(store: Store, sample: int) -> None:
    """Flip a bit in the first chunk of a sample."""
    place = next(iter(store.layout.chunks_of(sample, int(store.length[sample]))))
    path = shard_path(store.path, place.shard)
    offset = int(ShardReader(path, store.layout.geometry.shard_chunks).index[place.chunk, 0])
    data = bytearray(path.read_bytes())
    data[offset + 40] ^= 4
    path.write_bytes(bytes(data))


def record_other_digest(store: Store, sample: int) -> None:
    """Record a digest that is not that of the states, as a wrong writer would."""
    store.withdraw(np.array([sample]))
    block = store.layout.block(store.layout.block_of(sample))

    class Nothing:
        def __init__(self) -> None:
            self.block = block

        def seal(self) -> dict[int, int]:
            return {sample: 12345}

        def publish(self) -> None:
            pass

        def loses(self, _complete: set[int]) -> set[int]:
            return set()

    store.commit(Nothing(), {}, lambda: None)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("damage", [flip, record_other_digest])
def test_a_damaged_sample_is_named_and_pending(directory: Path, way: str, damage: object) -> None:
    store = make_part(directory / "a.zarr", SAMPLES)
    shutil.copytree(store.path, directory / "good.zarr")
    damage(store, BAD)  # type: ignore[operator]

    report = consolidate([store.path], directory / "out.zarr", WAYS[way])

    assert not report.ok
    assert [(one.sample, one.sample_id) for one in report.unusable] == [(BAD, "s5")]
    assert report.unusable[0].source == str(store.path)
    assert "crc32c" in report.unusable[0].detail or "digest" in report.unusable[0].detail
    assert (report.complete, report.pending) == (11, 1)
    verified = verify_store(directory / "out.zarr")
    assert (verified.bad, verified.checked, verified.pending) == ((), 11, 1)

    # The source is restored, and the same command brings what was missing.
    shutil.rmtree(store.path)
    shutil.copytree(directory / "good.zarr", store.path)
    if damage is record_other_digest:
        return  # what is recorded is the wrong digest, and the states still do not have it
    again = consolidate([store.path], directory / "out.zarr", WAYS[way])

    assert (again.ok, again.resumed, again.complete) == (True, True, 12)
    assert verify_store(directory / "out.zarr").checked == 12


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("damage", ["missing", "cut", "index"])
def test_a_damaged_shard_takes_its_samples_and_no_others(
    directory: Path, way: str, damage: str
) -> None:
    store = make_part(directory / "a.zarr", SAMPLES)
    path = shard_path(store.path, 2)
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(data[:30] if damage == "cut" else data[:-3] + b"abc")

    report = consolidate([store.path], directory / "out.zarr", WAYS[way])

    assert [one.sample_id for one in report.unusable] == ["s4", "s5"]
    assert (report.ok, report.complete, report.pending) == (False, 10, 2)
    assert verify_store(directory / "out.zarr").ok
    assert not list((directory / "out.zarr").rglob("*.partial"))


def test_states_that_are_wrong_in_the_source_itself_arrive_and_are_reported(
    directory: Path,
) -> None:
    """A consolidation proves that nothing was changed; what the states are is not its business."""
    store = make_part(directory / "a.zarr", SAMPLES[:4], pending={"s1"})
    states = SAMPLES[1].states()
    states[3, 1] = 0
    commit_states(store, {1: states} | {0: SAMPLES[0].states()})

    report = consolidate([store.path], directory / "out.zarr")

    assert (report.ok, report.complete, report.unusable) == (False, 4, ())
    assert report.verification is not None
    assert [bad.sample_id for bad in report.verification.bad] == ["s1"]


def test_without_verify_a_crc_is_still_checked_where_bytes_are_copied(directory: Path) -> None:
    store = make_part(directory / "a.zarr", SAMPLES)
    flip(store, BAD)
    options = Options(shard_rows=32, verify=False)

    report = consolidate([store.path], directory / "out.zarr", options)

    assert [one.sample_id for one in report.unusable] == ["s5"]
    assert report.verification is None

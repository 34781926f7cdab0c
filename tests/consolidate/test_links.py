"""Whole shards are taken over by link, and only where that is the same and stays the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hsstore.consolidate import Options, consolidate
from hsstore.consolidate.link import take_over
from hsstore.create import LayoutOptions
from hsstore.store import Store
from hsstore.testing.finite import commit_states
from hsstore.verify import verify_store
from tests.consolidate.parts import Named, check_holds, fill, look, make_part

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = [Named(f"s{number}", length=8) for number in range(12)]
"""Two to a shard of 16 rows, six to a span."""


def shards(store: Path) -> dict[str, Path]:
    """Return the shard files by name."""
    return {path.name: path for path in sorted((store / "hidden_states").glob("c.*"))}


def linked(one: Path, other: Path) -> list[str]:
    """Return the shards of one store that are the same file in the other."""
    theirs = {path.stat().st_ino for path in shards(other).values()}
    return [name for name, path in shards(one).items() if path.stat().st_ino in theirs]


def test_all_shards_of_one_whole_store_are_links(directory: Path) -> None:
    make_part(directory / "a.zarr", SAMPLES)

    report = consolidate([directory / "a.zarr"], directory / "b.zarr")

    assert linked(directory / "b.zarr", directory / "a.zarr") == [f"c.{n}.0.0" for n in range(6)]
    assert (report.shards, report.shards_linked, report.shards_unchanged) == (6, 6, 6)
    assert (report.samples_linked, report.samples_copied) == (12, 0)
    check_holds(Store.open(directory / "b.zarr"), SAMPLES)


def test_parts_of_one_plan_are_put_together_shard_by_shard(directory: Path) -> None:
    first, second = {one.name for one in SAMPLES[:6]}, {one.name for one in SAMPLES[6:]}
    long = Named("long", length=40)
    samples = [*SAMPLES, long]
    make_part(directory / "a.zarr", samples, pending=second)
    make_part(directory / "b.zarr", samples, pending=first)

    report = consolidate([directory / "a.zarr", directory / "b.zarr"], directory / "all.zarr")

    # `long` is complete in both: the first one has it, in three shards.
    assert len(linked(directory / "all.zarr", directory / "a.zarr")) == 6
    assert report.shards_linked == report.shards
    check_holds(Store.open(directory / "all.zarr"), samples)


def test_a_shard_with_a_hole_is_written_anew_and_the_others_are_links(directory: Path) -> None:
    make_part(directory / "a.zarr", SAMPLES, pending={"s3"})
    sizes = Options(span_samples=12)

    report = consolidate([directory / "a.zarr"], directory / "b.zarr", sizes)

    # Behind the hole everything moves up by half a shard.
    assert linked(directory / "b.zarr", directory / "a.zarr") == ["c.0.0.0"]
    assert (report.samples_linked, report.samples_copied, report.samples_encoded) == (2, 9, 0)
    check_holds(Store.open(directory / "b.zarr"), [one for one in SAMPLES if one.name != "s3"])


def test_a_shard_with_chunks_that_have_no_bit_is_copied(directory: Path) -> None:
    store = make_part(directory / "a.zarr", SAMPLES)
    store.withdraw(store.layout.block_sample[:1] + 11)  # the last one: its chunks stay behind

    report = consolidate([directory / "a.zarr"], directory / "b.zarr")

    assert "c.5.0.0" not in linked(directory / "b.zarr", directory / "a.zarr")
    assert (report.samples_linked, report.samples_copied) == (10, 1)
    merged = Store.open(directory / "b.zarr")
    check_holds(merged, SAMPLES[:11])


@pytest.mark.parametrize("changed", ["codec", "chunk_rows", "shard_rows"])
def test_another_encoding_links_nothing(directory: Path, changed: str) -> None:
    make_part(directory / "a.zarr", SAMPLES)
    options = {"codec": Options(codec="max"), "chunk_rows": Options(chunk_rows=8)}.get(
        changed, Options(shard_rows=32)
    )

    report = consolidate([directory / "a.zarr"], directory / "b.zarr", options)

    assert not linked(directory / "b.zarr", directory / "a.zarr")
    copied = 12 if changed == "shard_rows" else 0
    assert (report.samples_copied, report.samples_encoded) == (copied, 12 - copied)


def test_nothing_is_linked_where_that_is_not_wanted(directory: Path) -> None:
    make_part(directory / "a.zarr", SAMPLES)

    report = consolidate([directory / "a.zarr"], directory / "b.zarr", Options(linking="never"))

    assert not linked(directory / "b.zarr", directory / "a.zarr")
    assert (report.shards_linked, report.samples_copied) == (0, 12)
    # Copied and linked shards hold the same.
    check_holds(Store.open(directory / "b.zarr"), SAMPLES)


def test_a_later_run_on_either_store_is_not_seen_in_the_other(directory: Path) -> None:
    """Both are written as `extract` writes, after bits were cleared as `verify --repair` clears them."""
    make_part(directory / "a.zarr", SAMPLES)
    consolidate([directory / "a.zarr"], directory / "b.zarr")
    before = look(directory / "a.zarr")
    other = Named("s0", length=8, version=1)

    merged = Store.open(directory / "b.zarr")
    merged.withdraw(merged.layout.block_sample[:1])
    commit_states(merged, {0: other.states(), 1: SAMPLES[1].states()})

    assert look(directory / "a.zarr") == before
    check_holds(Store.open(directory / "a.zarr"), SAMPLES)

    source = Store.open(directory / "a.zarr")
    source.withdraw(source.layout.block_sample[1:2])
    fill(source, [*SAMPLES[:2], Named("s2", length=8, version=2), *SAMPLES[3:]])

    assert verify_store(merged.path).ok
    assert (merged.states(2).view(merged.bits) == SAMPLES[2].states()).all()


def test_a_link_is_renamed_over_another_link_to_the_same_file(directory: Path) -> None:
    """rename(2) does nothing then, and says that it went well."""
    make_part(directory / "a.zarr", SAMPLES)
    consolidate([directory / "a.zarr"], directory / "b.zarr")
    merged = Store.open(directory / "b.zarr")
    merged.withdraw(merged.layout.block_sample[:1])
    merged.withdraw(merged.layout.block_sample[:1] + 1)

    report = consolidate([directory / "a.zarr"], directory / "b.zarr")

    assert (report.resumed, report.shards_linked, report.ok) == (True, 1, True)
    assert not list((directory / "b.zarr").rglob("*.partial"))
    check_holds(Store.open(directory / "b.zarr"), SAMPLES)


def test_another_file_system_is_no_obstacle(directory: Path, tmp_path: Path) -> None:
    assert directory.stat().st_dev != tmp_path.stat().st_dev
    make_part(directory / "a.zarr", SAMPLES)

    report = consolidate([directory / "a.zarr"], tmp_path / "b.zarr")

    assert (report.shards_linked, report.samples_copied, report.ok) == (0, 12, True)


def test_a_file_behind_a_symbolic_link_is_linked_itself(directory: Path) -> None:
    (directory / "file").write_bytes(b"data")
    (directory / "name").symlink_to("file")

    assert take_over(directory / "name", directory / "twin", "auto")
    assert not (directory / "twin").is_symlink()
    assert not take_over(directory / "missing", directory / "other", "auto")
    assert not take_over(directory / "file", directory / "other", "never")
    assert not (directory / "other").exists()


def test_large_shards_are_chosen_for_many_small_stores(directory: Path) -> None:
    for name in "abc":
        make_part(directory / f"{name}.zarr", [Named(f"{name}{n}") for n in range(8)])

    paths = [directory / f"{name}.zarr" for name in "abc"]
    report = consolidate(paths, directory / "all.zarr")

    merged = Store.open(directory / "all.zarr")
    assert (report.shards, merged.spec.layout.chunk_rows) == (1, 4)
    assert report.samples_copied == 24
    small = LayoutOptions(chunk_rows=4, shard_rows=16, span_samples=6)
    assert merged.spec.layout.shard_rows > (small.shard_rows or 0)

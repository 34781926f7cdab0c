"""A consolidation that is killed anywhere goes on with the same command, and with the same choice."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hsstore.claims import Claims
from hsstore.consolidate import Options, consolidate
from hsstore.errors import InputError, RefusedError
from hsstore.store import Store
from hsstore.verify import verify_store
from tests.consolidate.parts import Named, check_holds, check_states, fill, look, make_part

DYING = Path(__file__).with_name("dying.py")
SAMPLES = [Named(f"s{number}", length=3 + number % 9) for number in range(40)]
SIZES = Options(shard_rows=16, span_samples=6)
SIZES_GIVEN = ("--shard-rows", "16", "--span-samples", "6")
IN_CREATION = 12
AFTER_CREATION = 48
"""More renames than the creation of a store takes, and fewer than with all of its blocks."""


def run_until(renames: int, *arguments: str | Path) -> int:
    """Run the command until it has renamed so many files; return its exit code."""
    command = [sys.executable, str(DYING), str(renames), "consolidate", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True).returncode


def make_sources(directory: Path) -> list[Path]:
    """Make two stores that overlap."""
    a, b = directory / "a.zarr", directory / "b.zarr"
    make_part(a, SAMPLES[:30], pending={"s20"})
    make_part(b, SAMPLES[18:])
    return [a, b]


def expected() -> list[Named]:
    """Return the merged samples in order: the second source has the one that the first lacks."""
    return [one for one in SAMPLES[:30] if one.name != "s20"] + [SAMPLES[20], *SAMPLES[30:]]


def begun(directory: Path, paths: list[Path]) -> Store:
    """Begin a consolidation, and kill it when some blocks of its destination are there."""
    out = directory / "out.zarr"
    assert run_until(AFTER_CREATION, *paths, out, *SIZES_GIVEN) == -signal.SIGKILL
    store = Store.open(out)
    complete = store.completion().complete
    assert complete.any()
    assert not complete.all()
    assert [record.result for record in store.runs()] == [None]
    return store


@pytest.mark.crash
def test_it_can_be_killed_again_and_again(directory: Path) -> None:
    paths = make_sources(directory)
    before = [look(path) for path in paths]
    out = directory / "out.zarr"
    arguments: list[str | Path] = [*paths, out, "--codec", "max", *SIZES_GIVEN]

    assert run_until(IN_CREATION, *arguments) == -signal.SIGKILL
    assert not out.exists()
    codes, done = [], []
    for attempt in range(12):
        codes.append(run_until(AFTER_CREATION + 5 * attempt, *arguments))
        if out.exists():
            store = Store.open(out)
            state = store.completion()
            done.append(int(state.complete.sum()))
            for sample in np.flatnonzero(state.complete).tolist():
                bits = store.states(sample).view(store.bits)
                assert np.array_equal(bits, expected()[sample].states())
        if codes[-1] == 0:
            break

    assert codes[-1] == 0
    assert set(codes[:-1]) == {-signal.SIGKILL}
    assert len({count for count in done if 0 < count < len(expected())}) > 1
    check_holds(Store.open(out), expected())
    assert not list(out.rglob("*.partial"))
    assert [look(path) for path in paths] == before


@pytest.mark.crash
def test_half_made_only_the_same_command_goes_on(directory: Path) -> None:
    paths = make_sources(directory)
    store = begun(directory, paths)

    for other in (
        Options(),
        replace(SIZES, codec="max"),
        replace(SIZES, order="length"),
        replace(SIZES, on_conflict="first"),
    ):
        with pytest.raises(RefusedError, match="made by another command"):
            consolidate(paths, store.path, other)
    with pytest.raises(RefusedError, match="sources was"):
        consolidate(paths[::-1], store.path, SIZES)
    report = consolidate(paths, store.path, SIZES)

    assert (report.resumed, report.ok) == (True, True)
    assert [record.result for record in store.runs()] == ["finished"]
    check_holds(store, expected())


@pytest.mark.crash
def test_what_became_complete_meanwhile_is_not_taken(directory: Path) -> None:
    paths = make_sources(directory)
    store = begun(directory, paths)
    fill(Store.open(paths[0]), SAMPLES[:30])

    assert consolidate(paths, store.path, SIZES).ok

    check_holds(store, expected())


@pytest.mark.crash
def test_what_a_source_took_back_or_redid_meanwhile_stays_pending_and_is_named(
    directory: Path,
) -> None:
    """As the canary of a run that writes the source takes back what its server computed wrongly."""
    paths = make_sources(directory)
    store = begun(directory, paths)
    source = Store.open(paths[0])
    source.withdraw(np.array([2, 25]))
    other = Named("s25", length=SAMPLES[25].length, version=1)
    fill(source, [*SAMPLES[:25], other, *SAMPLES[26:30]], pending={"s2", "s20"})

    report = consolidate(paths, store.path, SIZES)

    assert not report.ok
    assert sorted((one.sample_id, one.source) for one in report.unusable) == [
        ("s2", str(paths[0])),
        ("s25", str(paths[0])),
    ]
    why = "was taken back or redone in its source meanwhile"
    # Whether s2 had been written before the kill, who knows.
    details = {one.sample_id: one.detail for one in report.unusable}
    assert details["s25"] == why
    assert details["s2"] == why or "is missing" in details["s2"]
    complete = store.completion().complete
    assert np.flatnonzero(~complete).tolist() == [2, 24]
    verified = verify_store(store.path)
    assert (verified.bad, verified.pending) == ((), 2)


def test_a_store_in_the_place_of_a_source_is_refused(directory: Path) -> None:
    paths = make_sources(directory)
    consolidate(paths, directory / "out.zarr")
    paths[0].rename(directory / "old.zarr")
    make_part(paths[0], SAMPLES[:30])

    with pytest.raises(RefusedError, match="sources was"):
        consolidate(paths, directory / "out.zarr")
    # Where it lies does not matter.
    assert consolidate([directory / "old.zarr", paths[1]], directory / "out.zarr").ok
    with pytest.raises(InputError, match="no hsstore store is there"):
        consolidate([directory / "none.zarr", paths[1]], directory / "out.zarr")


def test_a_destination_that_somebody_writes_is_refused(directory: Path) -> None:
    paths = make_sources(directory)
    consolidate(paths, directory / "out.zarr")
    store = Store.open(directory / "out.zarr")
    with Claims(store, "other") as claims:
        claims.take([0])
        with pytest.raises(RefusedError, match="is being written by run other"):
            consolidate(paths, store.path)


def test_what_was_extracted_into_the_destination_is_left_alone(directory: Path) -> None:
    """A sample came from a server, with other bits, as `extract` commits it; another one is pending."""
    paths = make_sources(directory)
    consolidate(paths, directory / "out.zarr")
    store = Store.open(directory / "out.zarr")
    fresh = Named("s3", length=SAMPLES[3].length, version=1)
    samples = [*expected()[:3], fresh, *expected()[4:]]
    store.withdraw(np.arange(len(store)))
    fill(store, samples, pending={"s7"})

    report = consolidate(paths, store.path)

    assert (report.ok, report.samples_copied) == (True, 1)
    check_states(store, samples)

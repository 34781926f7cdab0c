"""Power cuts at many points: every set bit verifies. And each fsync in the code is needed for it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hsstore.errors import HsstoreError
from hsstore.store import Store
from hsstore.testing.invariants import check_set_bits_read_back, complete_samples
from hsstore.testing.stores import commit_block, make_store
from tests.faults import lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTHS = [3, 9, 40, 1, 16, 5, 7, 2, 30, 11, 12, 13]
ALL = set(range(len(LENGTHS)))
CHANGES = 700
"""More than filling the store makes."""
STEP = 4


@pytest.fixture
def volatile(room: Path) -> Iterator[lab.Fuse]:
    """Give a file system that keeps nothing but what was fsynced."""
    try:
        with lab.fuse(room, "--volatile") as mounted:
            yield mounted
    except lab.LabError as error:
        pytest.skip(str(error))


def fill_and_cut(volatile: lab.Fuse, room: Path, cuts: list[int]) -> dict[int, Path]:
    """Fill a store sample by sample; return what is left of it after each cut."""
    folder = room / "cuts"
    folder.mkdir()
    volatile.begin("cuts", "\n".join([str(folder), *map(str, cuts)]))
    store = make_store(volatile.mount / "s.zarr", LENGTHS)
    for block in range(store.layout.blocks):
        for sample in store.layout.block(block).samples:
            commit_block(store, block, [sample])
    assert complete_samples(store) == ALL
    for number in range(STEP):  # the last cut comes when all is done
        (volatile.mount / str(number)).touch()
    return {int(path.name): path / "s.zarr" for path in folder.iterdir()}


def broken_promises(left: dict[int, Path]) -> tuple[list[str], list[int]]:
    """Name what does not read back, and count the complete samples, in the order of the cuts."""
    broken, complete = [], []
    for number in sorted(left):
        if not left[number].exists():  # cut before the store had its name
            complete.append(0)
            continue
        try:
            store = Store.open(left[number])
            check_set_bits_read_back(store)
        except (HsstoreError, AssertionError) as error:
            broken.append(f"cut {number}: {type(error).__name__} {error}")
        else:
            complete.append(len(complete_samples(store)))
    return broken, complete


def test_every_set_bit_verifies_after_a_cut_at_any_moment(volatile: lab.Fuse, room: Path) -> None:
    cuts = sorted(random.Random(5).sample(range(1, CHANGES), 180))

    left = fill_and_cut(volatile, room, cuts)
    broken, complete = broken_promises(left)

    assert broken == []
    assert complete == sorted(complete)  # what was committed once is never lost
    assert len(set(complete)) > len(LENGTHS) // 2
    resume_from(left[max(left)])


def resume_from(path: Path) -> None:
    """Fill what a cut has left, and verify."""
    store = Store.open(path)
    for block in range(store.layout.blocks):
        samples = store.layout.block(block).samples
        pending = [one for one in samples if one not in complete_samples(store)]
        if pending:
            commit_block(store, block, pending)
    check_set_bits_read_back(Store.open(path))
    assert complete_samples(Store.open(path)) == ALL


def _is_shard(path: str) -> bool:
    return "/hidden_states/c." in path


def _is_chunk(name: str) -> Callable[[str], bool]:
    return lambda path: f"/{name}/c." in path


def _is_directory(name: str) -> Callable[[str], bool]:
    return lambda path: path.endswith(f"/{name}")


def test_with_every_fsync_all_is_there_in_the_end(volatile: lab.Fuse, room: Path) -> None:
    left = fill_and_cut(volatile, room, list(range(1, CHANGES, STEP)))

    assert broken_promises({max(left): left[max(left)]}) == ([], [len(ALL)])


@pytest.mark.parametrize(
    "is_left_out",
    [
        pytest.param(_is_shard, id="of a shard"),
        pytest.param(_is_chunk("complete"), id="of the bits"),
        pytest.param(_is_chunk("digest"), id="of the digests"),
        pytest.param(_is_chunk("failed"), id="of the failures"),
        pytest.param(_is_directory("hidden_states"), id="of the directory of shards"),
        pytest.param(_is_directory("digest"), id="of the directory of digests"),
        pytest.param(_is_directory("complete"), id="of the directory of bits"),
    ],
)
def test_without_any_one_fsync_a_cut_breaks_a_promise(
    volatile: lab.Fuse,
    room: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_left_out: Callable[[str], bool],
) -> None:
    fsync = os.fsync

    def forgetful(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if ".building" in path or not is_left_out(path):
            fsync(descriptor)

    monkeypatch.setattr(os, "fsync", forgetful)

    left = fill_and_cut(volatile, room, list(range(1, CHANGES, STEP)))
    broken, complete = broken_promises(left)

    assert broken or complete[-1] < len(ALL)

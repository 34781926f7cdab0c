"""`--repair`: bits of bad samples are cleared, and nothing else; then extract redoes exactly those."""

from __future__ import annotations

import shutil
import socket
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.claims import Claims
from hsstore.errors import InputError, OutputError, RefusedError
from hsstore.report import BadKind
from hsstore.shard import shard_path
from hsstore.shard.reader import ShardReader
from hsstore.store import Store
from hsstore.testing.finite import MIXED_COMPLETE
from hsstore.verify import SampleChoice, VerifyOptions, verify_store
from tests.extraction.fake_server import serve_fake
from tests.extraction.running import run_here
from tests.extraction.tiny import make_lengths, write_data
from tests.verify.test_completion import set_value
from tests.verify.test_payload import flip, rewrite_shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hsstore.report import Repair, Verification

REPAIR = VerifyOptions(repair=True)


def repair(path: Path) -> Repair:
    report = verify_store(path, REPAIR)
    assert not report.ok
    assert report.repair is not None
    return report.repair


def files_of(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def flip_in_sample(path: Path, sample: int) -> None:
    """Flip a byte of a sample's last chunk."""
    store = Store.open(path)
    place = list(store.layout.chunks_of(sample, int(store.length[sample])))[-1]
    shard = shard_path(path, place.shard)
    index = ShardReader(shard, store.layout.geometry.shard_chunks).index
    flip(shard, int(index[place.chunk, 0]) + 20)


def test_bits_and_digests_of_bad_samples_are_cleared_and_nothing_else_is_changed(
    damaged: Path,
) -> None:
    before = Store.open(damaged).completion()
    flip_in_sample(damaged, 2)
    flip_in_sample(damaged, 7)
    files = files_of(damaged)

    found = repair(damaged)

    after, now = Store.open(damaged).completion(), files_of(damaged)
    others = np.setdiff1d(np.arange(len(before.complete)), [2, 7])
    changed = {name for name in files if files[name] != now[name]}
    assert (found.cleared, found.files, found.left) == (2, 4, 0)
    assert now.keys() == files.keys()
    assert changed == {"complete/c.0", "digest/c.0", "complete/c.1", "digest/c.1"}
    assert after.pending[[2, 7]].all()
    assert not after.digest[[2, 7]].any()
    assert (after.complete[others] == before.complete[others]).all()
    assert (after.digest == np.where(np.isin(np.arange(13), [2, 7]), 0, before.digest)).all()
    assert (after.failed == before.failed).all()
    assert verify_store(damaged).ok
    assert not list((damaged.with_name("store.zarr.runs") / "claims").iterdir())


def lose_shard(path: Path) -> None:
    shard_path(path, next(Store.open(path).layout.chunks_of(4, 1)).shard).unlink()


def damage_index(path: Path) -> None:
    shard = shard_path(path, next(Store.open(path).layout.chunks_of(4, 1)).shard)
    flip(shard, shard.stat().st_size - 2)


def lose_chunk(path: Path) -> None:
    store = Store.open(path)
    rewrite_shard(store, 1, {next(store.layout.chunks_of(1, 1)).chunk: None})


def touch_padding(path: Path) -> None:
    store = Store.open(path)
    chunk = np.zeros(store.layout.geometry.chunk_shape, store.bits)
    chunk[:3] = store.payload.read(0)
    rewrite_shard(store, 0, {next(store.layout.chunks_of(0, 1)).chunk: chunk})


def mark_as_failed(path: Path) -> None:
    set_value(path, "failed", 7, 1, fix_crc=True)


def lose_bit(path: Path) -> None:
    set_value(path, "complete", 3, 0, fix_crc=True)


def damage_digest(path: Path) -> None:
    set_value(path, "digest", 3, 12345, fix_crc=False)


def damage_bit(path: Path) -> None:
    set_value(path, "complete", 3, 65, fix_crc=False)


@pytest.mark.parametrize(
    ("damage", "samples"),
    [
        (lose_shard, {4}),
        (lose_chunk, {1}),
        (touch_padding, {0}),
        (mark_as_failed, {7}),
        (lose_bit, {3}),
        (damage_digest, {3}),
        (damage_bit, {3}),
    ],
)
def test_every_kind_that_names_a_sample_leaves_it_pending_and_the_store_sound(
    damaged: Path, damage: Callable[[Path], None], samples: set[int]
) -> None:
    damage(damaged)

    found = repair(damaged)

    state = Store.open(damaged).completion()
    report = verify_store(damaged)
    assert (found.cleared, found.left) == (len(samples), 0)
    assert report.ok, report.bad
    assert set(np.flatnonzero(state.complete).tolist()) == set(MIXED_COMPLETE) - samples
    assert np.flatnonzero(state.failed).tolist() == [9]


def test_samples_of_a_shard_whose_index_is_damaged_are_cleared_and_the_shard_is_still_named(
    damaged: Path,
) -> None:
    damage_index(damaged)

    found = repair(damaged)

    assert (found.cleared, found.left) == (1, 0)
    report = verify_store(damaged)
    assert [(bad.sample, bad.kind) for bad in report.bad] == [(None, BadKind.SHARD_INDEX)]
    assert "writes the shard anew" in report.kinds[0].advice


@pytest.mark.parametrize("name", ["complete", "failed", "digest"])
def test_a_damaged_completion_file_that_names_no_sample_is_written_anew(
    damaged: Path, name: str
) -> None:
    before = Store.open(damaged).completion()
    flip(damaged / name / "c.2", -1)

    found = repair(damaged)

    after = Store.open(damaged).completion()
    assert (found.cleared, found.files, found.left) == (0, 1, 0)
    assert (after.complete == before.complete).all()
    assert (after.digest == before.digest).all()
    assert verify_store(damaged).ok


def test_failures_that_nothing_can_prove_become_pending(damaged: Path) -> None:
    set_value(damaged, "failed", 8, 1, fix_crc=False)

    repair(damaged)

    assert not Store.open(damaged).completion().failed.any()
    assert verify_store(damaged).ok


def unreadable(path: Path) -> None:
    shard = shard_path(path, next(Store.open(path).layout.chunks_of(4, 1)).shard)
    shard.unlink()
    with socket.socket(socket.AF_UNIX) as nothing_to_read:  # open(2) fails on it, also for root
        nothing_to_read.bind(str(shard))


def foreign(path: Path) -> None:
    (path / "foreign").write_bytes(b"")


def change_plan(path: Path) -> None:
    store = Store.open(path)
    ids = store.plan_array("sample_id").copy()
    ids[7] = ids[3]
    store._arrays.write("sample_id", slice(None), ids)


@pytest.mark.parametrize("damage", [unreadable, foreign, change_plan])
def test_what_no_bit_can_mend_is_left_and_said_so(
    damaged: Path, damage: Callable[[Path], None]
) -> None:
    damage(damaged)
    files = files_of(damaged)

    report = verify_store(damaged, REPAIR)

    assert report.repair is not None
    assert (report.repair.cleared, report.repair.files) == (0, 0)
    assert report.repair.left == len(report.bad) > 0
    assert files_of(damaged) == files


def test_nothing_is_cleared_where_the_plan_is_bad_for_good_states_look_wrong_then(
    damaged: Path,
) -> None:
    store = Store.open(damaged)
    length = store.length.copy()
    length[[1, 2]] = length[[2, 1]]
    store._arrays.write("length", slice(None), length)
    files = files_of(damaged)

    found = repair(damaged)

    assert (found.cleared, found.files) == (0, 0)
    assert found.left > 2
    assert "good states may look wrong" in found.refused
    assert files_of(damaged) == files


def test_a_part_of_the_samples_is_no_ground_for_a_repair() -> None:
    with pytest.raises(InputError, match="leave one of them away"):
        VerifyOptions(repair=True, sample=SampleChoice("5%"))


def test_a_store_that_a_run_holds_is_not_repaired(damaged: Path) -> None:
    flip_in_sample(damaged, 2)
    files = files_of(damaged)
    with Claims(Store.open(damaged), "run-1") as claims:
        claims.take([1])

        with pytest.raises(
            RefusedError, match=r"being written by run run-1 .*wait for it, or stop"
        ):
            verify_store(damaged, REPAIR)

    assert files_of(damaged) == files


@pytest.mark.parametrize("good_writes", [0, 1, 2, 3])
def test_a_repair_that_breaks_off_leaves_no_bad_sample_with_its_bit_and_can_be_repeated(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, good_writes: int
) -> None:
    flip_in_sample(damaged, 2)
    flip_in_sample(damaged, 7)
    done: list[str] = []

    def write_some(path: Path, data: bytes | memoryview) -> None:
        if path.parent.name in {"complete", "digest"}:
            if len(done) == good_writes:
                raise OSError(28, "No space left on device")
            done.append(path.parent.name)
        write(path, data)

    from hsstore.files import write_durably as write  # noqa: PLC0415  # the one that is replaced

    with monkeypatch.context() as patch:
        patch.setattr("hsstore.spans.write_durably", write_some)
        with pytest.raises(OutputError, match="No space left"):
            verify_store(damaged, REPAIR)
    half = verify_store(damaged, REPAIR)

    assert done == ["complete", "digest", "complete"][:good_writes]
    assert {bad.sample for bad in half.bad} <= {2, 7}
    assert verify_store(damaged).ok
    assert Store.open(damaged).completion().pending[[2, 7]].all()


async def test_extract_redoes_exactly_what_was_cleared(directory: Path) -> None:
    data = write_data(directory / "data.jsonl", make_lengths(24, longest=60))
    store, spool = directory / "store.zarr", directory / "spool"
    async with serve_fake(spool, 24) as server:
        first = await run_here(store, server.url, spool, data)
        good = Store.open(store).completion()
        flip_in_sample(store, 5)
        set_value_of(store, 17)
        shutil.rmtree(store.with_name("store.zarr.runs"))
        server.requests.clear()
        found = repair(store)
        again = await run_here(store, server.url, spool)

    report: Verification = verify_store(store)
    assert (first.code, again.code) == (0, 0), again.message
    assert found.cleared == 2
    assert sorted({request.sample for request in server.requests}) == [5, 17]
    assert report.ok
    assert report.checked == 24
    assert (Store.open(store).completion().digest == good.digest).all()


def set_value_of(path: Path, sample: int) -> None:
    """Give a sample another digest, with a valid checksum."""
    store = Store.open(path)
    digest = store.completion().digest
    digest[sample] ^= np.uint64(1)
    store._arrays.write("digest", slice(None), digest)

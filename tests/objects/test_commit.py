"""A store that is written under a URL: the same as on disk, and never a bit without its states, whatever happens."""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

import fsspec
import numpy as np
import pytest

import hsstore
from hsstore.create import Golden, create_store
from hsstore.errors import InputError, RefusedError, UnreachableError
from hsstore.objects.write import find_uploads
from hsstore.shard.upload import abort_uploads
from hsstore.spans import Span
from hsstore.spec import FailureReason
from hsstore.store import Store
from hsstore.testing.finite import make_run_record
from hsstore.testing.invariants import (
    check_same_data,
    check_set_bits_read_back,
    check_unset_bits_raise,
    complete_samples,
)
from hsstore.testing.stores import (
    commit_block,
    fill_store,
    make_dataset,
    make_model,
    make_store,
    start_block,
)
from hsstore.verify import VerifyOptions, verify_store
from tests.objects.s3 import S3, files_of, new_url

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event
    from pathlib import Path

    from hsstore.location import RemotePath

LENGTHS = [3, 9, 40, 1, 16, 5]
"""Blocks of the samples 0 and 1, 2 (three shards of its own), 3, 4, 5."""
FEW = [3, 9, 5]
"""Two blocks, where each costs a test."""
WRITES = "^(PUT|POST|DELETE) /states"
KINDS = {
    "a file of the plan": "PUT .*/length/c",
    "the store's name": r"PUT /states/[^/]*/s.zarr/zarr.json",
    "a beginning": r"POST .*\?uploads",
    "a part": "PUT .*partNumber",
    "an end": "POST .*uploadId",
    "digests": "PUT .*/digest/c",
    "failures": "PUT .*/failed/c",
    "the bits": "PUT .*/complete/c",
}


@pytest.fixture(params=["s3", "gs", "memory"])
def url(request: pytest.FixtureRequest) -> RemotePath:
    """Give a URL where nothing is."""
    if request.param != "memory":
        request.getfixturevalue(request.param)
    return new_url(request.param)


@pytest.fixture
def whole(directory: Path) -> Store:
    """Give a store on disk in which all samples are complete."""
    store = make_store(directory / "s.zarr", LENGTHS)
    fill_store(store)
    return store


@pytest.fixture
def few(directory: Path) -> Store:
    """Give a store on disk with the few samples, complete."""
    store = make_store(directory / "few.zarr", FEW)
    fill_store(store)
    return store


def kinds_of(remote: S3) -> list[str]:  # to Google, what is less than a unit is sent with the end
    return [where for name, where in KINDS.items() if remote.protocol == "s3" or name != "a part"]


def forget_name(url: RemotePath) -> None:
    """Leave what a creation leaves that is killed before the end."""
    fsspec.filesystem(str(url).partition(":")[0]).rm(f"{url}/zarr.json")


def extract(url: RemotePath, lengths: list[int]) -> Store:
    """Do what a run does: create or open, claim (which removes leftovers), write what is pending."""
    store = make_store(url, lengths)
    abort_uploads(url, lambda _shard: True)
    fill_store(store)
    return store


def check_finished(store: Store, whole: Store) -> None:
    check_same_data(store, whole)
    assert store.completion().complete.all()
    check_set_bits_read_back(store)
    assert find_uploads(str(store.location)) == []


def test_a_store_under_a_url_has_the_bytes_that_it_has_on_disk(
    url: RemotePath, whole: Store
) -> None:
    store = extract(url, LENGTHS)

    check_finished(hsstore.open(str(url)), whole)
    found = files_of(url)
    files = {str(p.relative_to(whole.path)): p for p in whole.path.rglob("*") if p.is_file()}
    assert found.keys() == files.keys()
    differ = [name for name, file in files.items() if found[name] != file.read_bytes()]
    assert differ == ["zarr.json"]  # its UUID, and when it was created
    found_by_verify = [
        verify_store(place, VerifyOptions()).kinds for place in (str(url), whole.path)
    ]
    assert found_by_verify[0] == found_by_verify[1]
    assert store.spec.store == hsstore.open(str(url)).spec.store


def test_a_block_is_written_in_parts_and_again(url: RemotePath) -> None:
    store = make_store(url, LENGTHS)
    commit_block(store, 0, [1], {0: FailureReason.NOT_FINITE})
    assert store.completion().failed[0] == FailureReason.NOT_FINITE

    store.reset_failed(np.array([0]))
    commit_block(Store.open(url), 0, [0])  # as another process does

    assert complete_samples(store) == {0, 1}
    check_set_bits_read_back(store)
    store.withdraw(np.array([1]))
    assert complete_samples(store) == {0}
    assert store.completion().digest[1] == 0
    check_unset_bits_raise(store)
    commit_block(store, 0, [1])
    check_set_bits_read_back(Store.open(url))


def test_runs_and_their_golden_states_are_recorded(url: RemotePath) -> None:
    store = make_store(url, LENGTHS)
    golden = np.random.default_rng(0).integers(0, 1 << 16, (2, 3, 16), dtype=np.uint16)
    record = make_run_record("r1", "2026-01-01T00:00:00+00:00", ended=False)

    store.record_run(record, golden)
    Store.open(url).record_run(make_run_record("r1", record.started, ended=True))
    store.record_run(make_run_record("r2", "2026-01-03T00:00:00+00:00", ended=False))

    assert [(run.run, run.ended is None) for run in Store.open(url).runs()] == [
        ("r1", False),
        ("r2", True),
    ]
    np.testing.assert_array_equal(
        Store.open(url).plan_array("runs/r1/golden").view(np.uint16), golden
    )


def test_shards_of_several_parts_are_the_same(
    url: RemotePath, whole: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if str(url).startswith("s3"):
        pytest.skip("S3 takes no part that is so small")
    monkeypatch.setattr("hsstore.shard.upload.PART_BYTES", 100)
    check_finished(extract(url, LENGTHS), whole)


# --- two at once --------------------------------------------------------------------------------


def test_of_two_who_create_a_store_one_does(url: RemotePath) -> None:
    with ThreadPoolExecutor(2) as threads:
        stores = [threads.submit(make_store, url, LENGTHS) for _ in range(2)]
        ids = {store.result().spec.store for store in stores}
    assert len(ids) == 1
    assert verify_store(str(url), VerifyOptions()).ok


def test_the_golden_states_are_those_of_the_store_that_won() -> None:
    """They are measured: a second server, or a second time, gives others."""
    url = new_url("memory")
    weight = np.ones(16, np.float32)
    goldens = [Golden((7, 8), np.full((2, 3, 16), number, np.uint16)) for number in (0, 1)]
    dataset, model = make_dataset(LENGTHS), make_model()
    create_store(url, dataset, model, norm_weight=weight, golden=goldens[0])
    forget_name(url)

    create_store(url, dataset, model, norm_weight=weight, golden=goldens[1])

    assert not Store.open(url).plan_array("golden").view(np.uint16).any()


def test_a_store_of_another_plan_is_not_mixed_with_what_a_dead_creation_left() -> None:
    url = new_url("memory")
    make_store(url, LENGTHS)
    forget_name(url)

    with pytest.raises(RefusedError, match=f"remove what is under {url}"):
        make_store(url, [*LENGTHS, 7])

    assert len(make_store(url, LENGTHS)) == len(LENGTHS)


def test_a_block_that_another_run_commits_meanwhile_is_not_written_over(url: RemotePath) -> None:
    store = make_store(url, LENGTHS)
    with ThreadPoolExecutor(1) as encoders:
        writer = start_block(store, 0, [0], encoders, "late")
        commit_block(Store.open(url), 0, [1])
        with pytest.raises(RefusedError, match="sample 1 was committed by somebody else"):
            store.commit(writer, {}, lambda: None)
        writer.discard()
    assert complete_samples(store) == {1}
    check_set_bits_read_back(store)
    assert find_uploads(str(url)) == []


def test_a_shard_that_another_run_publishes_meanwhile_is_not_written_over(url: RemotePath) -> None:
    store = make_store(url, LENGTHS)
    with ThreadPoolExecutor(1) as encoders:
        late, other = (start_block(store, 0, [s], encoders, "run") for s in (0, 1))
        late.flush()
        other.seal()
        other.publish()
        with pytest.raises(RefusedError, match=r"c\.0\.0\.0 is not what it was"):
            store.commit(late, {}, lambda: None)
        late.discard()
    assert complete_samples(store) == set()
    assert find_uploads(str(url)) == []


def test_bits_of_a_dead_run_do_not_come_behind_states_that_were_replaced(url: RemotePath) -> None:
    store = make_store(url, LENGTHS)
    looks = count()

    def die() -> None:
        if next(looks) % 2:  # between the shard and its digests
            raise UnreachableError("the heir is dead, too")

    with ThreadPoolExecutor(1) as encoders:
        dead = start_block(store, 0, [1], encoders, "dead")
        dead.seal()
        dead.publish()
        his = Span(url, 0, 6)
        his.digest[1] = 1
        his.write("digest")
        for _ in range(2):  # a version has two forms
            his = Span(url, 0, 6)
            his.complete[1] = True
            heir = start_block(store, 0, [0], encoders, "heir")
            with pytest.raises(UnreachableError):
                store.commit(heir, {}, die)
            with pytest.raises(RefusedError, match=r"complete/c\.0 is not what it was"):
                his.write("complete")

    assert complete_samples(store) == set()


def test_who_was_taken_over_withdraws_nothing_of_what_his_heir_has_done() -> None:
    url = new_url("memory")
    store = make_store(url, LENGTHS)
    looks = count()

    def hang() -> None:
        if next(looks) == 1:  # between the shard and the bits
            commit_block(Store.open(url), 0, [0, 1])
            raise RefusedError("taken over")

    with ThreadPoolExecutor(1) as encoders:
        writer = start_block(store, 0, [0], encoders, "late")
        with pytest.raises(RefusedError, match="taken over"):
            store.commit(writer, {}, hang)

    assert complete_samples(store) == {0, 1}
    check_set_bits_read_back(store)


@pytest.mark.parametrize("where", ["PUT .*/complete/c", "POST .*uploadId", "PUT .*/digest/c"])
def test_what_a_dead_run_sent_and_comes_late_changes_nothing(remote: S3, where: str) -> None:
    url = new_url(remote.protocol)
    store = make_store(url, LENGTHS)
    with ThreadPoolExecutor(1) as encoders:
        dead = start_block(store, 0, [0], encoders, "dead")
        remote.fail("hold", where, times=1000)
        with pytest.raises(UnreachableError):
            store.commit(dead, {}, lambda: None)
    remote.fail("", "", times=0)
    heir = Store.open(url)
    commit_block(heir, 0, [1])

    statuses = remote.release()

    assert {status[:3] for status in statuses} == {"412"}
    assert complete_samples(heir) == {1}
    check_set_bits_read_back(Store.open(url))


def test_bits_that_were_withdrawn_do_not_come_back(remote: S3) -> None:
    url = new_url(remote.protocol)
    store = make_store(url, LENGTHS)
    commit_block(store, 0, [0])
    remote.fail("hold", "PUT .*/complete/c", times=1)
    commit_block(store, 0, [1])  # the second attempt
    Store.open(url).withdraw(np.array([1]))  # so the bits are those that the first one replaces

    assert [status[:3] for status in remote.release()] == ["412"]

    assert complete_samples(store) == {0}


# --- errors, lost answers, kills ----------------------------------------------------------------


@pytest.mark.parametrize("what", ["after", 503])
def test_each_kind_of_write_may_fail_or_lose_its_answer(
    remote: S3, few: Store, what: int | str
) -> None:
    url = new_url(remote.protocol)
    remote.fail_all([{"what": what, "where": where, "times": 1} for where in kinds_of(remote)])

    store = extract(url, FEW)

    assert remote.unused_faults() == 0
    abort_uploads(url, lambda _shard: True)  # one that was begun and not heard of
    check_finished(store, few)


def test_bytes_that_arrive_otherwise_are_sent_again(remote: S3, few: Store) -> None:
    url = new_url(remote.protocol)
    kinds = [where for where in kinds_of(remote) if where.startswith("PUT")]
    remote.fail_all([{"what": "corrupt", "where": where, "times": 1} for where in kinds])

    store = extract(url, FEW)

    assert remote.unused_faults() == 0
    check_finished(store, few)


@pytest.mark.parametrize("name", ["the store's name", "an end", "the bits"])
def test_a_write_that_is_never_answered_sets_no_bit_without_its_states(
    remote: S3, few: Store, name: str
) -> None:
    url = new_url(remote.protocol)
    remote.fail("after", KINDS[name], times=1000)
    with pytest.raises(UnreachableError):
        extract(url, FEW)
    remote.fail("", "", times=0)

    check_finished(extract(url, FEW), few)


def test_a_store_that_refuses_to_be_written_says_so(remote: S3) -> None:
    url = new_url(remote.protocol)
    remote.fail(403, "PUT ", times=1000)
    with pytest.raises(InputError, match=rf"\(403\).*{remote.to_write}"):
        make_store(url, FEW)


def run_when(ready: Event, url: RemotePath) -> None:
    ready.wait(60)
    extract(url, FEW)


def test_a_run_that_is_killed_at_any_write_leaves_no_bit_without_its_states(
    remote: S3, few: Store
) -> None:
    url = new_url(remote.protocol)
    remote.requests()
    make_store(url, FEW)
    created = remote.writes()
    extract(url, FEW)
    written = created + remote.writes()
    context = multiprocessing.get_context("fork")
    of_a_block = (written - created) // 2
    for number in [created // 2, *range(created - 1, created + of_a_block), written - 1]:
        url, ready = new_url(remote.protocol), context.Event()
        child = context.Process(target=run_when, args=(ready, url))
        child.start()
        remote.fail("kill", WRITES, pid=child.pid, later=number)
        ready.set()
        child.join(120)
        assert child.exitcode == -signal.SIGKILL, number
        remote.fail("", "", times=0)
        if "zarr.json" in url.find():
            check_set_bits_read_back(Store.open(url))

        check_finished(extract(url, FEW), few)

"""Claims of a store under a URL: objects that are put on conditions, and owners whose death is proven by their process."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import fsspec
import pytest

import hsstore
from hsstore import liveness
from hsstore.activity import ticks
from hsstore.claim import Claim
from hsstore.claim_objects import ClaimObjects, claims_at, read_signs
from hsstore.claims import Claims
from hsstore.errors import InputError, RefusedError, UnreachableError
from hsstore.location import RemotePath
from hsstore.objects.puts import ABSENT
from hsstore.objects.write import Upload, find_uploads, head, put
from hsstore.testing.stores import make_store
from tests.objects.s3 import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hsstore.store import Store
    from tests.objects.s3 import S3

SPANS = 5


@pytest.fixture
def opened(directory: Path) -> Iterator[Store]:
    """Give a store of five spans in memory."""
    url = f"memory://claimed/{next(NAMES)}/store.zarr"
    fsspec.filesystem("memory").put(
        str(make_store(directory / "store.zarr", [4] * 20).path), url, recursive=True
    )
    yield hsstore.open(url)
    fsspec.filesystem("memory").rm("memory://claimed", recursive=True)


@pytest.fixture
def ended_pid() -> int:
    """Give the number of a process that is there no more."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


def claims_at_store(store: Store) -> RemotePath:
    assert isinstance(store.location, RemotePath)
    return claims_at(store.location)


def claimed(store: Store) -> list[str]:
    """Return the names that somebody has."""
    found = claims_at_store(store).find()
    return sorted(name for name, size in found.items() if size and not name.endswith(".beat"))


def leave(store: Store, name: str, **changes: object) -> None:
    """Leave the claim of another run."""
    claim = Claim.of_this_process("other").model_copy(update=changes)
    put(str(claims_at_store(store) / name), claim.text(), replaces=ABSENT)


def test_a_span_is_one_runs_and_free_again_when_it_is_given_back(opened: Store) -> None:
    with Claims(opened, "mine") as claims, Claims(opened, "other") as others:
        claims.take([0, 1])
        others.take([2])
        with pytest.raises(RefusedError) as refused:
            others.take([1, 3])
        while_held = claimed(opened)
        claims.release()
        others.take([1])
        others.check(1)

    assert f"is being written by run mine (pid {os.getpid()} on " in str(refused.value)
    assert while_held == ["0", "1", "2", "3"]
    assert claimed(opened) == []
    assert claims_at_store(opened).find()["0"] == 0  # nothing is ever deleted
    assert read_signs(claims_at_store(opened).parent.parent / "store.zarr") == []


def test_workers_take_what_is_free_and_give_single_spans_back(opened: Store) -> None:
    with (
        Claims(opened, "one", worker="0/2") as one,
        Claims(opened, "two", worker="1/2") as two,
        Claims(opened, "late", worker="1/2") as late,
    ):
        one.take_place()
        two.take_place()
        with pytest.raises(RefusedError, match="worker 1/2 is there already"):
            late.take_place()
        taken = [one.try_to_take(0), two.try_to_take(0), two.try_to_take(1)]
        one.give(0)
        taken.append(two.try_to_take(0))
        with pytest.raises(RefusedError, match="span 0 was taken over by worker 1/2, run two"):
            one.take_again(0)
        two.give(1)
        one.take_again(1)
        held = claimed(opened)
        with pytest.raises(RefusedError, match="start this run with --worker too"):
            late.refuse_workers()

    assert taken == [True, False, True, True]
    assert held == ["0", "1", "worker-0-of-2", "worker-1-of-2"]
    assert claimed(opened) == []


@pytest.mark.parametrize("reused", [False, True], ids=["gone", "its number is another's"])
def test_claims_of_a_process_that_is_dead_are_inherited(
    opened: Store, ended_pid: int, *, reused: bool
) -> None:
    leave(opened, "0", pid=os.getpid() if reused else ended_pid, began=1)
    leave(opened, "3", pid=ended_pid, began=1)

    with Claims(opened, "mine") as claims:
        claims.take([0])
        claims.check(0)
        claims.check(3)
    assert claimed(opened) == []


def test_of_several_heirs_one_gets_a_claim(opened: Store, ended_pid: int) -> None:
    leave(opened, "0", pid=ended_pid, began=1)
    assert isinstance(opened.location, RemotePath)
    heirs = [ClaimObjects(opened.location, Claim.of_this_process(f"heir{n}")) for n in range(2)]
    seen = [heir.read("0") for heir in heirs]

    for heir, found in zip(heirs, seen, strict=True):
        assert found is not None
        heir.inherit("0", found)

    left = heirs[0].read("0")
    assert left is not None
    assert left.claim == heirs[0].me
    for heir in heirs:
        heir.give(["0"])
        heir.end()
        heir.close(clean=True)
    assert claimed(opened) == []


def test_elsewhere_a_claim_is_taken_over_on_demand_and_only_from_who_was_silent(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 3.0)
    monkeypatch.setattr(liveness, "LISTEN_SECONDS", 0.05)
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 5.0)
    leave(opened, "1", host="elsewhere")
    beat = str(claims_at_store(opened) / "other.beat")
    version = put(beat, b"1", replaces=ABSENT)
    with Claims(opened, "mine") as claims, pytest.raises(RefusedError) as refused:
        claims.take([1])

    def renew() -> None:
        nonlocal version
        version = put(beat, b"2", replaces=version)

    other = liveness.Beat(renew)
    with Claims(opened, "heir", take_over=True) as claims:
        with pytest.raises(RefusedError, match=r"sign of life came \d s ago, by the object store"):
            claims.take([1])
        other.end()
        monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.5)
        monkeypatch.setattr(liveness, "SILENT_SECONDS", 1.0)
        claims.take([1])
        claims.check(1)

    assert "if you are sure that it is dead, run again with --take-over" in str(refused.value)
    assert claimed(opened) == []


def test_what_was_taken_away_stops_its_owner_and_is_not_given_back_by_it(opened: Store) -> None:
    with Claims(opened, "mine") as claims:
        claims.take([1])
        url = str(claims_at_store(opened) / "1")
        now = head(url)
        assert now is not None
        put(url, Claim.of_this_process("thief").text(), replaces=now.version)
        with pytest.raises(RefusedError, match="span 1 was taken over by run thief"):
            claims.check(1)

    assert claimed(opened) == ["1"]


def test_what_is_no_claim_is_refused_by_its_url(opened: Store) -> None:
    put(str(claims_at_store(opened) / "1"), b'{"run": "half', replaces=ABSENT)

    with Claims(opened, "mine") as claims, pytest.raises(RefusedError) as refused:
        claims.take([1])

    assert f"{claims_at_store(opened) / '1'} is not a claim" in str(refused.value)


def test_uploads_that_were_begun_in_a_span_end_when_it_is_taken(opened: Store) -> None:
    names = ["hidden_states/c.0.0.0", "complete/c.0", "hidden_states/c.4.0.0", "complete/c.2"]
    assert [opened.layout.block(shard).span for shard in (0, 4)] == [0, 2]
    for name in names:
        Upload(f"{opened.location}/{name}", replaces=ABSENT)

    with Claims(opened, "mine", worker="0/1") as claims:
        assert claims.try_to_take(0)
        left = [upload.url for upload in find_uploads(f"{opened.location}/")]

    assert left == [f"{opened.location}/{name}" for name in names[2:]]


def test_a_sign_of_life_tells_what_the_run_says_and_is_no_progress(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.05)
    said = iter(range(1000))
    assert isinstance(opened.location, RemotePath)
    with Claims(opened, "mine", say=lambda: str(next(said)).encode()):
        said_last, progress = 0, 0
        while not said_last:  # 0 is the first word
            before = ticks()
            time.sleep(0.5)
            progress += ticks() - before
            (sign,) = read_signs(opened.location)
            said_last = int(sign.data)

    assert progress == 0


@pytest.mark.parametrize(
    ("where", "what"), [("PUT", "a put"), ("POST .*uploadId", "the end of an upload")]
)
def test_a_store_that_ignores_what_a_write_replaces_is_not_written(
    remote: S3, mixed: Path, where: str, what: str
) -> None:
    store = hsstore.open(remote.upload(mixed))
    remote.fail("any version", where, times=10_000)

    called = {"s3": "If-None-Match", "gs": "ifGenerationMatch=0"}[remote.protocol]
    with pytest.raises(InputError, match=rf"ignores conditions of {what} \({called}\)"):
        Claims(store, "mine")

    assert isinstance(store.location, RemotePath)
    assert read_signs(store.location) == []


@pytest.mark.parametrize("what", ["reset", 403])
def test_claims_that_cannot_be_given_back_raise_nothing_and_are_inherited_also_while_the_process_lives(
    s3: S3, mixed: Path, what: int | str
) -> None:
    store = hsstore.open(s3.upload(mixed))
    claims = Claims(store, "mine")
    claims.take([0])
    s3.fail(what, "PUT", times=10_000)
    claims.release()
    s3.fail("", "", times=0)
    left = claimed(store)

    with Claims(store, "heir") as heir:
        heir.take([0])
        heir.check(0)

    assert left == ["0"]
    assert claimed(store) == []


def test_a_claim_that_could_not_be_given_back_is_given_back_at_the_end(s3: S3, mixed: Path) -> None:
    store = hsstore.open(s3.upload(mixed))
    with Claims(store, "mine") as claims:
        claims.take([0])
        s3.fail("reset", "PUT", times=10_000)
        with pytest.raises(UnreachableError):
            claims.give(0)
        s3.fail("", "", times=0)
    assert claimed(store) == []

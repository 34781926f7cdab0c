"""Who may write which span, decided between real processes."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from functools import partial
from threading import Thread, Timer
from typing import TYPE_CHECKING, Any

import pytest

from hsstore import liveness
from hsstore.claims import Claim, Claims
from hsstore.create import LayoutOptions
from hsstore.errors import RefusedError
from hsstore.liveness import SILENT_SECONDS
from hsstore.store import Store
from hsstore.testing.stores import make_store
from tests.extraction.mounts import read_only
from tests.extraction.processes import left_claims, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CLAIM = """
import sys
from hsstore.claims import Claims
from hsstore.errors import RefusedError
from hsstore.store import Store
path, run, spans, worker = sys.argv[1:]
claims = Claims(Store.open(path), run, worker=worker)
try:
    if worker:
        claims.take_place()
        assert all(map(claims.try_to_take, map(int, spans.split(","))))
    else:
        claims.take(map(int, spans.split(",")))
    print("taken", flush=True)
except RefusedError as error:
    print(error, flush=True)
sys.stdin.read()
claims.release()
"""


@pytest.fixture
def opened(store: Path) -> Store:
    """Give a store of four spans."""
    return make_store(store, [4] * 20)


class Claimant:
    """A process that claims spans, and holds them until it is told to end."""

    def __init__(self, store: Path, run: str, spans: str, worker: str = "") -> None:
        command: list[str | Path] = [sys.executable, "-c", _CLAIM, store, run, spans, worker]
        self.process: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def said(self) -> str:
        """Return its one line."""
        assert self.process.stdout is not None
        line: str = self.process.stdout.readline()
        return line.strip()

    def end(self, *, kill: bool = False) -> None:
        """Let it give its claims back, or kill it."""
        if kill:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def other(opened: Store) -> Iterator[Claimant]:
    """Give a process that holds spans 0 and 1."""
    claimant = Claimant(opened.path, "other", "0,1")
    assert claimant.said() == "taken"
    yield claimant
    claimant.end(kill=True)


@pytest.fixture
def worker(opened: Store) -> Iterator[Claimant]:
    """Give a process that is worker 0 of 2, and holds spans 0 and 2."""
    claimant = Claimant(opened.path, "other", "0,2", "0/2")
    assert claimant.said() == "taken"
    yield claimant
    claimant.end(kill=True)


def let_be_silent(store: Store, run: str) -> None:
    """Let it seem as if a run had given no sign of life for long."""
    long_ago = time.time() - 2 * SILENT_SECONDS
    os.utime(store.runs_path / "claims" / f"{run}.lock", (long_ago, long_ago))


def test_a_span_of_a_live_run_is_refused_by_name_and_others_are_free(
    opened: Store, other: Claimant
) -> None:
    with Claims(opened, "mine") as claims:
        claims.take([2, 3])
        with pytest.raises(RefusedError) as refused:
            claims.take([1])

        assert f"this store is being written by run other (pid {other.process.pid} on " in str(
            refused.value
        )
        assert left_claims(opened.path) == ["0", "1", "2", "3"]
    assert left_claims(opened.path) == ["0", "1"]


def test_claims_of_a_dead_run_are_inherited_all_of_them(opened: Store, other: Claimant) -> None:
    partial = opened.path / "hidden_states" / "c.0.0.0.other.partial"
    foreign = opened.path / "hidden_states" / "c.x.partial.txt"
    for path in (partial, foreign):
        path.write_bytes(b"left")
    other.end(kill=True)

    with Claims(opened, "mine") as claims:
        claims.take([0])

        claims.check(0)
        claims.check(1)
        assert not partial.exists()
        assert foreign.exists()
    assert left_claims(opened.path) == []


def test_what_a_dead_run_began_of_its_record_is_removed_and_no_living_runs(
    opened: Store, other: Claimant
) -> None:
    def begin(path: str) -> Path:
        partial = opened.path / "runs" / path
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(b"left")
        return partial

    of_other = [begin("other/zarr.json.1.partial"), begin("other/golden/c.0.0.0.2.partial")]
    of_the_unknown = begin("unknown/zarr.json.3.partial")
    with Claims(opened, "mine") as claims:
        claims.take([2])
        of_mine = begin("mine/zarr.json.4.partial")
        while_it_lives = [path.exists() for path in of_other]
        other.end(kill=True)
        claims.take([0])

        assert while_it_lives == [True, True]
        assert [path.exists() for path in of_other] == [False, False]
        assert of_mine.exists()
        assert of_the_unknown.exists()


def test_who_only_looks_whether_a_run_lives_keeps_no_heir_out(
    opened: Store, other: Claimant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 5.0)
    other.end(kill=True)
    lock = os.open(opened.runs_path / "claims" / "other.lock", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)  # as `lives` does for a moment
    Timer(0.05, os.close, [lock]).start()

    with Claims(opened, "mine") as claims:
        claims.take([0])

        claims.check(0)


def test_of_many_heirs_one_wins(opened: Store, other: Claimant) -> None:
    other.end(kill=True)

    heirs = [Claimant(opened.path, f"heir{n}", "1") for n in range(4)]
    said = [heir.said() for heir in heirs]

    winner = said.index("taken")
    assert said.count("taken") == 1
    for line in said[:winner] + said[winner + 1 :]:
        assert f"run heir{winner} " in line
    for heir in heirs:
        heir.end()


def test_a_run_that_ended_by_itself_leaves_nothing(opened: Store, other: Claimant) -> None:
    other.end()

    assert list((opened.runs_path / "claims").iterdir()) == []


@pytest.mark.parametrize("field", ["host", "boot", "pid_namespace"])
def test_a_claim_from_where_locks_do_not_reach_is_taken_over_only_on_demand(
    opened: Store, other: Claimant, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.end(kill=True)
    path = opened.runs_path / "claims" / "1"
    claim = Claim.model_validate_json(path.read_text())
    path.unlink()  # other spans' claims are the same file
    path.write_text(claim.model_copy(update={field: "elsewhere"}).model_dump_json())

    with Claims(opened, "mine") as claims:
        with pytest.raises(RefusedError) as refused:
            claims.take([1])
        claims.take([2])

    left = left_claims(opened.path)
    let_be_silent(opened, "other")
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.5)
    monkeypatch.setattr(liveness, "LISTEN_SECONDS", 0.05)
    with Claims(opened, "heir", take_over=True) as claims:
        claims.take([1])
        claims.check(1)

    assert "if you are sure that it is dead, run again with --take-over" in str(refused.value)
    assert left == ["1"]
    assert left_claims(opened.path) == []


def test_taking_over_never_takes_from_a_run_that_lives(
    opened: Store, other: Claimant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.5)
    monkeypatch.setattr(liveness, "LISTEN_SECONDS", 0.05)
    path = opened.runs_path / "claims" / "1"
    claim = Claim.model_validate_json(path.read_text())
    path.write_text(claim.model_copy(update={"host": "elsewhere"}).model_dump_json())
    let_be_silent(opened, "other")

    with (
        Claims(opened, "mine", take_over=True) as claims,
        pytest.raises(RefusedError, match=r"run other .* on elsewhere.* clear it at the file serv"),
    ):
        claims.take([1])

    assert left_claims(opened.path) == ["0", "1"]


def test_a_lock_file_that_somebody_removed_proves_no_death(opened: Store, other: Claimant) -> None:
    (opened.runs_path / "claims" / "other.lock").unlink()

    with (
        Claims(opened, "mine") as claims,
        pytest.raises(RefusedError, match="is being written by run other"),
    ):
        claims.take([1])

    other.end(kill=True)
    with Claims(opened, "heir", take_over=True) as claims:
        claims.take([1])
    assert left_claims(opened.path) == []


def test_who_waits_for_a_sign_of_life_waits_no_more_when_the_run_is_to_end(
    opened: Store, other: Claimant, caplog: pytest.LogCaptureFixture
) -> None:
    path = opened.runs_path / "claims" / "1"
    claim = Claim.model_validate_json(path.read_text())
    path.write_text(claim.model_copy(update={"host": "elsewhere"}).model_dump_json())
    claims = Claims(opened, "mine", take_over=True)
    refused: list[RefusedError] = []

    def take() -> None:
        try:
            claims.take([1])
        except RefusedError as error:
            refused.append(error)

    taking = Thread(target=take)
    taking.start()
    wait_until(lambda: "taking over from run other" in caplog.text)
    claims.release()
    taking.join(SILENT_SECONDS / 2)

    assert not taking.is_alive()
    assert "run other" in str(refused)


@pytest.mark.parametrize("content", [b"", b'{"run": "half', b"\xff\xfe", b"[]"])
def test_a_file_that_is_no_claim_is_refused_by_name_and_only_where_it_is_in_the_way(
    opened: Store, content: bytes
) -> None:
    path = opened.runs_path / "claims" / "1"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)

    with Claims(opened, "mine", take_over=True) as claims:
        claims.take([0])
        with pytest.raises(RefusedError) as refused:
            claims.take([1])

    assert f"{path} is not a claim" in str(refused.value)
    assert str(refused.value).endswith("remove it")
    assert left_claims(opened.path) == ["1"]


def test_claims_that_cannot_be_given_back_raise_nothing_and_are_inherited(opened: Store) -> None:
    claims = Claims(opened, "mine")
    claims.take([0, 1])

    with read_only(opened.runs_path):
        claims.release()

    assert left_claims(opened.path) == ["0", "1"]
    with Claims(opened, "heir") as heir:
        heir.take([1])
    assert left_claims(opened.path) == []


def test_a_claim_that_was_taken_away_stops_its_owner(opened: Store) -> None:
    with Claims(opened, "mine") as claims:
        claims.take([1])
        path = opened.runs_path / "claims" / "1"
        mine: Any = Claim.model_validate_json(path.read_text())
        path.write_text(mine.model_copy(update={"run": "thief"}).model_dump_json())

        with pytest.raises(RefusedError, match="span 1 was taken over by run thief"):
            claims.check(1)

    assert left_claims(opened.path) == ["1"]  # not ours to remove


def test_one_run_is_there_once(opened: Store) -> None:
    with (
        Claims(opened, "mine"),
        pytest.raises(RefusedError, match="run mine is already going on"),
    ):
        Claims(opened, "mine")


def test_many_spans_are_claimed_with_few_files(store: Path) -> None:
    made = make_store(store, [1] * 1200, options=LayoutOptions(4, 16, span_samples=1))

    with Claims(made, "mine") as claims:
        claims.take(range(1200))
        paths = [made.runs_path / "claims" / str(span) for span in range(1200)]
        files = {path.stat().st_ino for path in paths}
        claims.check(1199)

    assert len(files) == 2
    assert left_claims(store) == []


def test_where_locks_do_not_reach_a_sign_of_life_forbids_to_take_over_and_silence_allows_it(
    opened: Store, other: Claimant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 3.0)
    monkeypatch.setattr(liveness, "LISTEN_SECONDS", 0.1)
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 5.0)
    other.end(kill=True)
    path = opened.runs_path / "claims" / "1"
    claim = Claim.model_validate_json(path.read_text())
    path.unlink()
    path.write_text(claim.model_copy(update={"host": "elsewhere"}).model_dump_json())
    let_be_silent(opened, "other")  # as all are when the file server answers again
    beat = liveness.Beat(partial(os.utime, opened.runs_path / "claims" / "other.lock"))

    with Claims(opened, "mine", take_over=True) as claims:
        with pytest.raises(RefusedError, match=r"sign of life came \d s ago, by the file server's"):
            claims.take([1])
        beat.end()
        monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.5)
        monkeypatch.setattr(liveness, "SILENT_SECONDS", 1.0)
        claims.take([1])

        claims.check(1)
    assert left_claims(opened.path) == []


def test_a_worker_takes_what_is_free_or_of_the_dead_and_gives_single_spans_back(
    opened: Store, worker: Claimant
) -> None:
    partial = opened.path / "hidden_states" / "c.0.0.0.other.partial"
    partial.write_bytes(b"left")
    with Claims(opened, "mine", worker="1/2") as claims:
        claims.take_place()
        while_it_lives = [claims.try_to_take(span) for span in range(4)]
        claims.give(3)
        given_back = left_claims(opened.path)
        left = partial.exists()
        worker.end(kill=True)
        of_the_dead = claims.try_to_take(0)
        claims.check(0)
        swept = not partial.exists()
        claims.bury()
        claims.check(2)
        claims.take_again(3)
        claims.check(3)

    assert while_it_lives == [False, True, False, True]
    assert given_back == ["0", "1", "2", "worker-0-of-2", "worker-1-of-2"]
    assert (left, of_the_dead, swept) == (True, True, True)
    assert not claims.try_to_take(1)  # all was given back
    assert left_claims(opened.path) == ["worker-0-of-2"]


def test_a_worker_is_there_once_and_its_number_is_free_when_it_is_dead(
    opened: Store, worker: Claimant
) -> None:
    with (
        Claims(opened, "mine", worker="0/2") as claims,
        pytest.raises(RefusedError) as refused,
    ):
        claims.take_place()
    said = f"worker 0/2 is there already: this store is being written by worker 0/2, run other (pid {worker.process.pid} on "
    with Claims(opened, "mine", worker="0/3") as claims:
        claims.take_place()  # of another number of workers: claims keep them apart
    worker.end(kill=True)

    assert said in str(refused.value)
    with Claims(opened, "mine", worker="0/2") as claims:
        claims.take_place()
    assert left_claims(opened.path) == ["0", "2"]


def test_a_run_that_wants_the_whole_store_and_workers_refuse_each_other(
    opened: Store, worker: Claimant
) -> None:
    with (
        Claims(opened, "mine") as claims,
        pytest.raises(RefusedError, match="start this run with --worker too") as whole,
    ):
        claims.refuse_workers()
    worker.end(kill=True)
    with Claims(opened, "mine") as claims:
        claims.refuse_workers()
        claims.take([0, 1, 2, 3])
        with (
            Claims(opened, "late", worker="0/2") as late,
            pytest.raises(RefusedError, match=r"has this store alone.*written by run mine \("),
        ):
            late.take_place()

    assert "worker 0/2, run other (pid " in str(whole.value)
    assert left_claims(opened.path) == []


def test_claims_of_runs_that_are_no_workers_read_as_they_always_did(opened: Store) -> None:
    with Claims(opened, "mine") as claims:
        claims.take([0])
        content = json.loads((opened.runs_path / "claims" / "0").read_bytes())

    assert set(content) == {"run", "host", "boot", "pid_namespace", "pid", "since"}


def test_who_comes_through_a_symbolic_link_meets_the_same_claims(opened: Store) -> None:
    link = opened.path.with_name("latest.zarr")
    link.symlink_to(opened.path.name)
    with Claims(opened, "by-name") as claims:
        claims.take([1])
        with (
            Claims(Store.open(link), "by-link") as others,
            pytest.raises(RefusedError, match="run by-name"),
        ):
            others.take([1])

"""What survives a kill at any moment, and the order of system calls that makes it survive."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hsstore.files import PARTIAL_SUFFIX
from hsstore.store import Store
from hsstore.testing.invariants import (
    check_same_data,
    check_set_bits_read_back,
    check_unset_bits_raise,
    complete_samples,
)
from hsstore.testing.stores import fill_store, make_store
from tests.extraction.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

KILLS = 6
LENGTHS = [3, 9, 40, 1, 16, 5, 7, 2, 30, 11, 12, 13]

COMMIT_IN_A_LOOP = """
import random, sys
import numpy as np
import hsstore
from hsstore.spec import FailureReason
from hsstore.testing.stores import commit_block

store = hsstore.open(sys.argv[1])
chance = random.Random(int(sys.argv[2]))
print("started", flush=True)
while True:
    block = chance.randrange(store.layout.blocks)
    samples = store.layout.block(block).samples
    pending = store.completion(slice(samples.start, samples.stop)).pending
    left = (samples.start + np.flatnonzero(pending)).tolist()
    some = chance.sample(left, min(1, len(left)))
    commit_block(store, block, some, run=sys.argv[2])
"""


def kill_while_it_commits(
    path: Path, attempt: int, after_seconds: float, *, committed: bool
) -> None:
    """Kill a writer at a moment; with `committed`, only when some of the store is."""
    writer = subprocess.Popen(
        [sys.executable, "-c", COMMIT_IN_A_LOOP, str(path), str(attempt)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with writer:
        assert writer.stdout
        assert writer.stdout.readline() == "started\n"
        if committed:
            wait_until(lambda: bool(complete_samples(Store.open(path))))
        time.sleep(after_seconds)
        writer.send_signal(signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL


@pytest.mark.crash
def test_a_writer_killed_at_random_moments_breaks_no_promise(directory: Path) -> None:
    store = make_store(directory / "s.zarr", LENGTHS)
    chance = random.Random(2)
    done: set[int] = set()

    for attempt in range(KILLS):
        moment = chance.uniform(0, 0.3)
        kill_while_it_commits(store.path, attempt, moment, committed=attempt == KILLS - 1)
        reopened = Store.open(store.path)
        check_set_bits_read_back(reopened)
        check_unset_bits_raise(reopened)
        assert done <= complete_samples(reopened)
        done = complete_samples(reopened)

    assert done
    unknown = {
        path.name
        for path in store.path.rglob("*")
        if path.is_file()
        and not re.fullmatch(rf"zarr\.json|c(\.\d+)+|.*{PARTIAL_SUFFIX}", path.name)
    }
    assert not unknown
    uninterrupted = make_store(directory / "u.zarr", LENGTHS)
    fill_store(uninterrupted)
    fill_store(store)
    check_same_data(store, uninterrupted)


# --- the order of system calls ----------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One fsync or rename that succeeded, in the order in which they happened."""

    name: str
    path: str
    target: str = ""


CREATE_AND_COMMIT = """
import sys
from pathlib import Path
from hsstore.spec import FailureReason
from hsstore.testing.stores import commit_block, make_store

store = make_store(Path(sys.argv[1]), [3, 9, 40])
commit_block(store, 0, [1], {0: FailureReason.BAD_DATA})
commit_block(store, 1, [2])
"""

# Python raises an audit event before a rename; fsync has none, so it is wrapped.
RECORD_IN_PYTHON = """
import json, os, sys

calls = []
fsync = os.fsync
def recorded_fsync(descriptor):
    fsync(descriptor)
    calls.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}"), ""))
os.fsync = recorded_fsync

def record(event, args):
    if event == "os.rename":
        calls.append(("rename", str(args[0]), str(args[1])))
sys.addaudithook(record)
"""


def record_with_python(store: Path) -> list[Call]:
    program = RECORD_IN_PYTHON + CREATE_AND_COMMIT + "\nprint(json.dumps(calls))"
    run = subprocess.run(
        [sys.executable, "-c", program, str(store)], check=True, capture_output=True, text=True
    )
    return [Call(*call) for call in json.loads(run.stdout)]


def record_with_strace(store: Path) -> list[Call]:
    log = store.parent / "strace"
    strace = ["strace", "-f", "-y", "-s", "4096", "-e", "trace=fsync,rename", "-o", str(log)]
    subprocess.run([*strace, sys.executable, "-c", CREATE_AND_COMMIT, str(store)], check=True)
    return _parse_strace(log.read_text())


def _parse_strace(log: str) -> list[Call]:
    """Place each fsync where it returned, and each rename where it began."""
    calls: list[Call] = []
    unfinished: dict[str, str] = {}
    for line in log.splitlines():
        thread, _, text = line.partition(" ")
        text = text.strip()
        if text.startswith("fsync(") and text.endswith("<unfinished ...>"):
            unfinished[thread] = text
        elif text.startswith("<... fsync resumed>"):
            text = unfinished.pop(thread) + text
        if found := re.match(r'rename\("(.*?)", "(.*?)"', text):
            calls.append(Call("rename", found[1], found[2]))
        elif found := re.match(r"fsync\(\d+<(.*?)>.* = 0$", text):
            calls.append(Call("fsync", found[1]))
    return calls


def _can_strace() -> bool:
    command = ["strace", "-o", os.devnull, "true"]
    return shutil.which("strace") is not None and not subprocess.call(
        command, stderr=subprocess.DEVNULL
    )


@pytest.fixture(scope="module", params=[record_with_python, record_with_strace])
def calls(request: pytest.FixtureRequest) -> list[Call]:
    """Give what happens when a store is created and two of its blocks are committed."""
    if request.param is record_with_strace and not _can_strace():
        pytest.skip("strace is not installed, or may not trace")
    record: Callable[[Path], list[Call]] = request.param
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        found = record(Path(directory) / "s.zarr")
    return [call for call in found if call.path.startswith(directory)]


def test_every_file_is_fsynced_before_its_rename_and_its_directory_after(
    calls: list[Call],
) -> None:
    renames = [index for index, call in enumerate(calls) if call.name == "rename"]

    assert len(renames) > 20
    for index in renames:
        rename = calls[index]
        target = Path(rename.target)
        if target.name != "s.zarr":  # the one directory: its files have their own renames
            assert Call("fsync", rename.path) in calls[:index], rename
        assert calls[index + 1] == Call("fsync", str(target.parent)), rename


def test_the_bits_come_last(calls: list[Call]) -> None:
    named = [
        "/".join(call.target.split("/")[-2:])
        for call in calls
        if call.name == "rename" and "/c." in call.target and ".building" not in call.target
    ]

    completion = ["digest/c.0", "failed/c.0", "complete/c.0"]
    first = ["hidden_states/c.0.0.0", *completion]
    # A sample longer than a shard: all its shards have their names before anything is said.
    long = [f"hidden_states/c.{shard}.0.0" for shard in (1, 2, 3)]
    assert named == [*first, *long, *completion]


def test_all_shards_of_a_block_are_durable_before_the_first_has_a_name(calls: list[Call]) -> None:
    first_name = next(
        index for index, call in enumerate(calls) if call.target.endswith("hidden_states/c.1.0.0")
    )

    partials = {f"hidden_states/c.{shard}.0.0.run.partial" for shard in (1, 2, 3)}
    fsynced = {"/".join(call.path.split("/")[-2:]) for call in calls[:first_name]}
    assert partials <= fsynced


def test_a_new_store_is_durable_before_it_has_its_name(calls: list[Call]) -> None:
    naming = next(index for index, call in enumerate(calls) if call.target.endswith("/s.zarr"))
    building = calls[naming].path

    files = {call.target for call in calls[:naming] if call.name == "rename"}
    directories = {str(Path(file).parent) for file in files}
    fsynced = {call.path for call in calls[:naming] if call.name == "fsync"}
    assert f"{building}/zarr.json" in files
    assert f"{building}/complete/zarr.json" in files
    assert directories <= fsynced
    assert all(call.path.startswith(building) for call in calls[:naming] if call.name == "rename")

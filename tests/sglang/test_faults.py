"""Faults on a real server that goes on living; its spool is a 16 MiB tmpfs of its own.

After every test: the store is complete and sound, holds what the server held, and nothing is left in
the spool.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import urllib.error
from typing import TYPE_CHECKING, Any

import pytest

from hsstore.store import Store
from tests.extraction.mounts import MIB, small_tmpfs
from tests.extraction.processes import wait_until
from tests.sglang.checks import (
    PATIENCE_SECONDS,
    begin_run,
    check_tokens,
    generate,
    post,
    start_run,
    verify,
)
from tests.sglang.evidence import check_store_equals_witness
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import SglangServer, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.extraction.processes import Extraction

ROW_BYTES = 4 * 256 * 4
"""Four slots of a float32 Llama, 256 wide."""
SPOOL_BYTES = 16 * MIB
LONG = 2300
"""A dump of this many rows takes more than half of the spool."""
SAMPLES, LONGEST = 160, 120
FOREIGN_RIDS = (
    "somebody",
    "hs-",
    "hs-elsewhere-3-0-20",
    "hs-elsewhere-3-0-1",
    "hs-../../escape-0-0-20",
    "hs-\u00e9-0-0-20",
    "x" * 500,
)
"""Ids that other people, and other runs, may use."""


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[SglangServer]:
    """Serve with a spool that is almost too small."""
    with (
        small_tmpfs(SPOOL_BYTES) as tmpfs,
        serving(
            tiny_llama,
            *("--layers", "0,2,4"),
            sglang=("--chunked-prefill-size", "64"),
            spool=tmpfs / "spool",
        ) as one,
    ):
        yield one


@pytest.fixture
def fresh(server: SglangServer) -> SglangServer:
    """Give the server, with nothing witnessed and nothing in its spool."""
    assert server.alive
    server.clear_spool()
    server.clear_witness()
    return server


@pytest.fixture(scope="module")
def data(room: Path) -> Path:
    """Give 160 samples of 1 to 120 tokens."""
    return write_samples(room / "faults.jsonl", draw_lengths(SAMPLES, LONGEST))


def check_whole(run: Extraction, path: Path, server: SglangServer, data: Path) -> str:
    """Wait for the run's end: all is there, all is right, nothing is left; returns its log."""
    ended = run.wait(PATIENCE_SECONDS)
    assert ended.code == 0, ended.log
    assert "Traceback" not in ended.log
    verify(path)
    store = Store.open(path)
    check_tokens(store, data)
    assert len(check_store_equals_witness(store, server.witness)) == len(store)
    assert server.alive
    assert server.left_in_spool() == []
    return ended.log


def test_a_spool_that_cannot_hold_two_dumps_lets_the_run_end(
    fresh: SglangServer, new_store: Path, room: Path
) -> None:
    assert 2 * LONG * ROW_BYTES > SPOOL_BYTES
    data = write_samples(room / "long.jsonl", [LONG, 40, LONG, LONG, 300, 7, LONG])
    run = start_run(new_store, fresh, "--data", data, "--spool-budget-gb", "0.015")

    check_whole(run, new_store, fresh, data)


def test_a_sample_that_no_spool_can_hold_is_refused_before_the_first_request(
    fresh: SglangServer, new_store: Path, room: Path
) -> None:
    rows = SPOOL_BYTES // ROW_BYTES
    data = write_samples(room / "too-long.jsonl", [40, rows])
    ended = start_run(new_store, fresh, "--data", data).wait(PATIENCE_SECONDS)

    assert ended.code in {2, 3}, ended.log
    assert "bytes" in ended.log or "MB" in ended.log
    assert not any(json.dumps(rows) in path.name for path in fresh.witness.iterdir())
    assert fresh.left_in_spool() == []


def test_a_server_that_stands_still_for_a_while_costs_only_time(
    fresh: SglangServer, new_store: Path, data: Path
) -> None:
    run = begin_run(new_store, fresh, "--data", data, "--request-timeout", "2")
    fresh.signal(signal.SIGSTOP)
    try:
        run.wait_for(lambda status: status.retries > 0, PATIENCE_SECONDS)
    finally:
        fresh.signal(signal.SIGCONT)

    assert "no answer and no heartbeat" in check_whole(run, new_store, fresh, data)


def test_requests_of_others_disturb_nothing_and_are_not_disturbed(
    fresh: SglangServer, new_store: Path, data: Path
) -> None:
    run = begin_run(new_store, fresh, "--data", data)
    answers = [
        generate(fresh.url, range(3, 23), rid=f"{rid}{round_}")
        for round_ in range(3)
        for rid in FOREIGN_RIDS
    ]

    check_whole(run, new_store, fresh, data)
    assert all(len(answer["output_ids"]) == 1 for answer in answers)


def test_ids_that_are_used_twice_and_aborts_of_others_cost_no_sample(
    fresh: SglangServer, new_store: Path, data: Path
) -> None:
    # What somebody else aborts is answered like any other request, and no dump comes.
    run = begin_run(new_store, fresh, "--data", data, "--max-in-flight", "8")
    meddled: set[str] = set()
    while run.process.poll() is None and len(meddled) < 12:
        for path in [*fresh.spool.glob("hs-*.part"), *fresh.spool.glob("hs-*.safetensors")]:
            rid = path.name.rpartition(".")[0]
            if rid not in meddled:
                meddled.add(rid)
                _send_again(fresh.url, rid)
                post(fresh.url, "/abort_request", {"rid": rid})
        time.sleep(0.01)

    assert meddled
    check_whole(run, new_store, fresh, data)


def _send_again(url: str, rid: str) -> None:
    """Send other tokens under the id of a request that is under way, or was just answered."""
    with contextlib.suppress(urllib.error.HTTPError):  # "Duplicate request ID" while under way
        generate(url, range(3, 3 + int(rid.rpartition("-")[2])), rid=rid)


def test_a_client_that_stands_still_does_not_hold_up_the_requests_of_others(
    fresh: SglangServer, new_store: Path, data: Path
) -> None:
    run = begin_run(new_store, fresh, "--data", data, "--max-in-flight", "32")
    os.killpg(run.process.pid, signal.SIGSTOP)  # with the spool held, and requests under way
    try:
        fresh.settle()
        answers = _in_parallel(lambda: generate(fresh.url, range(3, 203)), 12)
    finally:
        os.killpg(run.process.pid, signal.SIGCONT)

    check_whole(run, new_store, fresh, data)
    assert [len(answer["output_ids"]) for answer in answers] == [1] * 12


def _in_parallel(ask: Callable[[], Any], count: int) -> list[Any]:
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(ask())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_a_run_that_is_killed_leaves_dumps_that_the_next_one_takes(
    fresh: SglangServer, new_store: Path, data: Path
) -> None:
    first = begin_run(new_store, fresh, "--data", data)
    first.kill()
    fresh.settle()
    committed = int(Store.open(new_store).completion().complete.sum())

    run = start_run(new_store, fresh)
    log = check_whole(run, new_store, fresh, data)

    assert 0 < committed < SAMPLES
    assert "are used" in log


def test_a_server_that_is_stopped_leaves_nothing(server: SglangServer) -> None:
    assert server.stop() in {0, 75}

    wait_until(lambda: not server.processes(), 30)
    left = {path.name for path in server.spool.iterdir()} if server.spool.exists() else set()
    assert left <= {"server.lock", "server.json", "heartbeat", "free"}

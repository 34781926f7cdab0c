"""Servers that are killed in the middle of a run, and what comes back in their place."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.store import Store
from tests.extraction.processes import wait_until
from tests.sglang.checks import PATIENCE_SECONDS, begin_run, check_tokens, start_run, verify
from tests.sglang.evidence import check_store_equals_transformers, check_store_equals_witness
from tests.sglang.models import make_llama
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import READY_SECONDS, SglangServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES, LONGEST = 200, 120


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[SglangServer]:
    """Serve a tiny Llama."""
    chunks = ("--chunked-prefill-size", "64")
    with serving(tiny_llama, "--layers", "0,2,4", sglang=chunks) as one:
        yield one


@pytest.fixture(scope="module")
def data(room: Path) -> Path:
    """Give 200 samples of 1 to 120 tokens."""
    return write_samples(room / "restarts.jsonl", draw_lengths(SAMPLES, LONGEST))


def check_what_is_there(path: Path, server: SglangServer, data: Path) -> int:
    """Everything committed is what the server held; returns how much it is."""
    found = check_store_equals_witness(Store.open(path), server.witness)
    assert list(path.rglob("*.partial")) == []
    return len(found)


def test_a_server_that_is_killed_and_started_again_costs_only_time(
    server: SglangServer, new_store: Path, data: Path, tiny_llama: Path
) -> None:
    run = begin_run(new_store, server, "--data", data, "--max-in-flight", "8")
    before = server.pid
    server.kill()
    server.start().wait()
    ended = run.wait(PATIENCE_SECONDS)

    assert ended.code == 0, ended.log
    assert server.pid != before
    assert "is asked for again" in ended.log
    assert "Traceback" not in ended.log
    verify(new_store)
    check_tokens(Store.open(new_store), data)
    assert check_what_is_there(new_store, server, data) == SAMPLES
    check_store_equals_transformers(Store.open(new_store), tiny_llama)
    assert server.left_in_spool() == []


def test_another_model_in_its_place_is_refused_and_what_is_committed_stays_right(
    server: SglangServer, new_store: Path, data: Path, room: Path, tiny_llama: Path
) -> None:
    server.clear_witness()
    run = begin_run(new_store, server, "--data", data, "--max-in-flight", "8")
    server.kill()
    committed = set(np.flatnonzero(Store.open(new_store).completion().complete).tolist())
    server.model = make_llama(room / "other-llama", seed=1)
    server.start().wait()
    ended = run.wait(PATIENCE_SECONDS)

    assert ended.code == 3, ended.log
    assert "another model" in ended.log
    complete = Store.open(new_store).completion().complete
    assert committed <= set(np.flatnonzero(complete).tolist())
    assert 0 < check_what_is_there(new_store, server, data) < SAMPLES
    check_store_equals_transformers(Store.open(new_store), tiny_llama)
    assert server.left_in_spool() == []

    again = start_run(new_store, server).wait(PATIENCE_SECONDS)

    assert again.code == 3, again.log
    assert "capture hash" in again.log or "another model" in again.log
    assert server.left_in_spool() == []


def test_a_server_without_the_plugin_in_its_place_is_refused_with_the_reason(
    server: SglangServer, new_store: Path, data: Path
) -> None:
    server.clear_witness()
    run = begin_run(new_store, server, "--data", data, "--max-in-flight", "8")
    server.kill()
    with _without_plugin(server):
        began = time.monotonic()
        ended = run.wait(PATIENCE_SECONDS)
        fresh = start_run(new_store.with_name("new.zarr"), server, "--data", data).wait(
            PATIENCE_SECONDS
        )
        seconds = time.monotonic() - began

    for one in (ended, fresh):
        assert one.code == 3, one.log
        assert "plugin" in one.log
    assert seconds < 200
    assert 0 < check_what_is_there(new_store, server, data) < SAMPLES
    check_store_equals_transformers(Store.open(new_store), server.model)
    assert not new_store.with_name("new.zarr").exists()


@contextmanager
def _without_plugin(server: SglangServer) -> Iterator[None]:
    """Start the very command that `--print-command` prints, but for what makes it capture."""
    at = server.command().index("--")
    printing = [*server.command()[:at], "--print-command", *server.command()[at:]]
    result = subprocess.run(printing, check=True, capture_output=True, text=True)
    words = shlex.split(result.stdout.replace("\\\n", " "))
    environment = os.environ | server.environment
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = os.path.expandvars(value)
    assert environment.pop("HSSTORE_SPOOL") == str(server.spool)
    words = words[: words.index(">" + str(server.sglang_log))]
    with server.sglang_log.open("w") as log:
        process = subprocess.Popen(
            words, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_until(lambda: "fired up" in server.sglang_log.read_text(), READY_SECONDS)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        server.kill()

"""Three real servers for one run: one is killed, one stands still, one comes late."""

from __future__ import annotations

import signal
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hsstore.store import Store
from tests.extraction.gate import gated
from tests.extraction.processes import (
    SMALL_STORE,
    Extraction,
    Server,
    extract,
    left_claims,
    remove_spool,
    verify,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = 61


@contextmanager
def starting(model: Path, count: int) -> Iterator[list[Server]]:
    """Start so many more servers, side by side."""
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            path = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm")
            )
            server = Server(model, Path(path))
            stack.callback(remove_spool, server)
            stack.callback(server.kill)
            servers.append(server.start())
        for server in servers:
            server.wait()
        yield servers


@pytest.mark.crash
def test_one_is_killed_one_stands_still_one_comes_late_and_the_store_is_that_of_one_server(
    server: Server, tiny_model: Path, store: Path, data: Path
) -> None:
    alone = store.with_name("alone.zarr")
    assert extract(alone, server, "--data", data, *SMALL_STORE).code == 0
    names = store.with_name("servers.txt")
    with (
        starting(tiny_model, 2) as (killed, late),
        gated(server, SAMPLES, 20) as stands,
        gated(killed, SAMPLES, 5) as dies,
    ):
        names.write_text("# one comes late\n")
        run = Extraction(
            store,
            stands,
            *("--data", data, *SMALL_STORE, "--max-in-flight", "2", "--request-timeout", "2"),
            *("--servers-file", names, "--server", f"{dies.url}={dies.spool}"),
            with_spool=False,
        )
        wait_until(lambda: (stands.answered, dies.answered) == (20, 5))
        killed.kill()
        server.signal(signal.SIGSTOP)
        for gate in (stands, dies):
            gate.open()
        try:
            names.write_text(f"{late.url}={late.spool}\n")
            parked = run.wait_for(lambda status: len(status.servers) == 3)
            ended = run.wait()
        finally:
            server.signal(signal.SIGCONT)

    assert ended.code == 0, ended.log
    assert "Traceback" not in ended.log
    assert f"server {dies.url} is parked: " in ended.log
    assert f"server {late.url} is asked for samples" in ended.log
    assert {one.url for one in parked.servers} == {stands.url, dies.url, late.url}
    assert left_claims(store) == []
    verify(store, SAMPLES)
    one, three = Store.open(alone), Store.open(store)
    assert np.array_equal(one.completion().digest, three.completion().digest)

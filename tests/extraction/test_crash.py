"""SIGKILL at any moment costs nothing: the store is what an undisturbed run would have made."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extraction.handshake import SPREAD_REQUESTS
from hsstore.digest import payload_digest
from hsstore.store import Store
from hsstore.testing.invariants import check_same_data
from tests.extraction.gate import gated
from tests.extraction.processes import SMALL_STORE, Extraction, left_claims, verify, wait_until
from tests.extraction.running import run_here
from tests.extraction.tiny import make_lengths, write_data

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from tests.extraction.processes import Server

KILLS = 6
SAMPLES = 240
FORWARDS_A_RUN = 18
"""At most so many samples before a kill: too few for all, whatever the speed of the machine."""
IN_FLIGHT = 4


@pytest.mark.crash
def test_a_run_that_is_killed_again_and_again_makes_the_store_of_an_undisturbed_one(
    server: Server, store: Path, room: Path
) -> None:
    data = write_data(room / "crash.jsonl", make_lengths(SAMPLES))
    undisturbed = store.with_name("undisturbed.zarr")
    asyncio.run(run_here(undisturbed, server.url, server.spool, data))
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    before = server.forwards
    digest = np.zeros(SAMPLES, np.uint64)

    for kill in range(KILLS):
        _run_and_kill(server, store, data, moments, committed=kill == KILLS - 1)
        digest = _check_what_is_committed(store, digest, f"kill {kill}, seed {seed}")
    server.settle()
    outcome = asyncio.run(run_here(store, server.url, server.spool))

    assert outcome.code == 0, outcome.message
    assert outcome.status.complete == np.count_nonzero(digest) > 0
    assert np.array_equal(_check_what_is_committed(store, digest, "end") != 0, np.ones(SAMPLES))
    check_same_data(Store.open(undisturbed), Store.open(store))
    verify(store, SAMPLES)
    # A killed run's dumps are used by the next: no more is asked for twice than was in flight.
    assert server.forwards - before <= SAMPLES + (KILLS + 1) * (IN_FLIGHT + 2 + SPREAD_REQUESTS)
    assert server.left_in_spool() == []
    assert left_claims(store) == []
    assert list(store.rglob("*.partial")) == []


def _run_and_kill(
    server: Server, store: Path, data: Path, moments: random.Random, *, committed: bool
) -> None:
    """Kill a run at a random moment; with `committed`, only when some of the store is."""
    enough = server.forwards + moments.randint(0, FORWARDS_A_RUN)
    in_flight = ("--max-in-flight", str(IN_FLIGHT))
    with gated(server, SAMPLES, FORWARDS_A_RUN) as gate:
        run = Extraction(store, gate, "--data", data, *SMALL_STORE, *in_flight)
        try:
            wait_until(lambda: run.worker() is not None)
            wait_until(lambda: server.forwards >= enough)
            if committed:
                wait_until(lambda: bool(Store.open(store).completion().complete.any()))
            time.sleep(moments.uniform(0, 0.1))
            assert run.process.poll() is None, run.log()
        finally:
            run.kill()


def _check_what_is_committed(
    path: Path, earlier: npt.NDArray[np.uint64], context: str
) -> npt.NDArray[np.uint64]:
    """Check all set bits; return the digests, 0 where there is none."""
    if not path.exists():
        return earlier
    store = Store.open(path)
    completion = store.completion()
    digest = np.where(completion.complete, completion.digest, 0)
    for sample in np.flatnonzero(completion.complete).tolist():
        assert payload_digest(store.payload.read(sample)) == digest[sample], f"{sample}, {context}"
    kept = earlier != 0
    assert np.array_equal(digest[kept], earlier[kept]), context
    return digest

"""A server that also generates, and takes requests back in the middle: prompts come again.

SGLang retracts here at every third step. A request that was retracted is computed anew from its first
token on, with what it has generated behind its prompt.
"""

from __future__ import annotations

import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from extraction.spool import ClientInfo, RequestId, SpoolClient
from hsstore.store import Store
from tests.extraction.processes import wait_until
from tests.sglang.checks import (
    PATIENCE_SECONDS,
    begin_run,
    check_canary,
    check_tokens,
    generate,
    post,
    run_record,
    verify,
)
from tests.sglang.evidence import check_store_equals_witness, read_witness
from tests.sglang.models import VOCABULARY
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import SglangServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.extraction.processes import Extraction

HIDDEN = 256
RUN = "decoding"
SAMPLES, LONGEST = 120, 300
REQUESTS, NEW_TOKENS = 16, 24


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[SglangServer]:
    """Serve with prompts and generated tokens mixed in one forward."""
    with serving(
        tiny_llama,
        *("--layers", "0,2,4"),
        sglang=("--chunked-prefill-size", "64", "--enable-mixed-chunk"),
        environment={"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "3"},
    ) as one:
        yield one


@pytest.fixture
def fresh(server: SglangServer) -> SglangServer:
    """Give the server, with nothing witnessed."""
    assert server.alive
    server.clear_witness()
    return server


def decode(url: str, tokens: list[int], **more: object) -> int:
    """Have many tokens generated; returns how many came."""
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    return len(generate(url, tokens, sampling_params=sampling, **more)["output_ids"])


@contextmanager
def others_decode(url: str) -> Iterator[list[int]]:
    """Generate for other people all the while; gives how many tokens each got."""
    prompts = np.random.default_rng(9).integers(3, VOCABULARY, (8, 90)).tolist()
    got: list[int] = []
    going = True

    def ask(prompt: list[int]) -> None:
        while going:
            got.append(decode(url, prompt))

    with ThreadPoolExecutor(len(prompts)) as pool:
        asked = [pool.submit(ask, prompt) for prompt in prompts]
        try:
            yield got
        finally:
            going = False
    for one in asked:
        one.result()


def retract_all(url: str) -> None:
    """Take back whatever is under way, and forget the prefixes that would answer for it."""
    post(url, "/pause_generation", {"mode": "retract"})
    with urllib.request.urlopen(f"{url}/flush_cache") as answer:
        answer.read()
    post(url, "/continue_generation", {})


def retractions(server: SglangServer) -> int:
    """Count them in SGLang's log."""
    return server.sglang_log.read_text().count("retraction. #retracted_reqs: 1")


def check_whole(run: Extraction, path: Path, server: SglangServer, data: Path) -> Store:
    """Wait for the run's end: all is there, all is right, nothing is left."""
    ended = run.wait(PATIENCE_SECONDS)
    assert ended.code == 0, ended.log
    verify(path)
    store = Store.open(path)
    check_tokens(store, data)
    check_canary(run_record(store))
    assert len(check_store_equals_witness(store, server.witness)) == len(store)
    assert server.alive
    assert server.left_in_spool() == []
    return store


def test_a_run_beside_requests_that_decode_and_are_retracted(
    fresh: SglangServer, new_store: Path, room: Path
) -> None:
    data = write_samples(room / "beside.jsonl", draw_lengths(SAMPLES, LONGEST))
    before = retractions(fresh)
    with others_decode(fresh.url) as got:
        run = begin_run(new_store, fresh, "--data", data)
        check_whole(run, new_store, fresh, data)

    assert retractions(fresh) > before
    assert set(got) == {NEW_TOKENS}


def test_prompts_that_are_retracted_halfway_come_twice_and_are_stored_once(
    fresh: SglangServer, new_store: Path, room: Path
) -> None:
    data = write_samples(room / "halfway.jsonl", [LONGEST] * SAMPLES)
    run = begin_run(new_store, fresh, "--data", data)
    while run.process.poll() is None and not came_twice(fresh):
        post(fresh.url, "/pause_generation", {"mode": "retract"})
        post(fresh.url, "/continue_generation", {})

    check_whole(run, new_store, fresh, data)
    assert came_twice(fresh)


def came_twice(server: SglangServer) -> list[str]:
    """Name the requests whose first rows were computed more than once."""
    begun = Counter(path.name.split(".0.")[0] for path in server.witness.glob("*.0.0-0.*.npz"))
    return [rid for rid, times in begun.items() if times > 1]


def test_named_requests_that_decode_leave_the_states_of_their_prompts(fresh: SglangServer) -> None:
    generator = np.random.default_rng(3)
    lengths = draw_lengths(REQUESTS, LONGEST)
    rids = [RequestId(RUN, sample, 0, length) for sample, length in enumerate(lengths)]
    prompts = [generator.integers(3, VOCABULARY, length).tolist() for length in lengths]
    before = retractions(fresh)
    with SpoolClient(fresh.spool, ClientInfo(RUN, "store")) as client:
        with ThreadPoolExecutor(REQUESTS) as pool:
            asked = [
                pool.submit(decode, fresh.url, prompt, rid=str(rid), extra_key=str(rid))
                for rid, prompt in zip(rids, prompts, strict=True)
            ]
            wait_until(lambda: len(client.scan().finished) >= REQUESTS // 2)
            finished = {str(rid) for rid in client.scan().finished}
            retract_all(fresh.url)
        wait_until(lambda: len(client.scan().finished) == REQUESTS)
        witness = read_witness(fresh.witness, HIDDEN)
        for rid, prompt in zip(rids, prompts, strict=True):
            dump = client.open_dump(rid)
            np.testing.assert_array_equal(dump.input_ids, prompt)
            np.testing.assert_array_equal(dump.hidden, witness[rid]["0-0"].states)
            dump.close()
            client.discard(rid)
        client.trim_free(0)

    assert [one.result() for one in asked] == [NEW_TOKENS] * REQUESTS
    assert retractions(fresh) > before
    assert finished & set(came_twice(fresh))
    assert fresh.alive
    assert fresh.left_in_spool() == []

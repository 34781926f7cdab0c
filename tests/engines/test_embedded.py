"""`serve` as a process: ready line, spool, end."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from extraction.engines.transformers_model import TransformersEngine
from extraction.spool import ClientInfo, RequestId, SpoolClient, SpoolView


async def test_a_served_model_hands_its_own_states_over_and_ends_cleanly(
    tiny_llama: Path, spool_path: Path, serving: Any
) -> None:
    ids = np.random.default_rng(1).integers(0, 512, 700).astype(np.int32)
    rid = RequestId("0123456789ab", 0, 0, 700)
    engine = TransformersEngine(tiny_llama, layers=(0, 2, 5))
    expected = engine.capture(ids, predict=True, progress=lambda: None)

    with serving(tiny_llama, spool_path) as (process, url):
        with SpoolClient(spool_path, ClientInfo(rid.run, "store")) as client:
            info = client.wait_for_server(timeout_seconds=0)
            body = {
                "input_ids": ids.tolist(),
                "rid": str(rid),
                "sampling_params": {"max_new_tokens": 1},
            }
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{url}/generate", json=body) as response,
            ):
                answer = await response.json()
            deadline = time.monotonic() + 60
            while rid not in client.scan().finished:
                assert time.monotonic() < deadline
                time.sleep(0.01)  # noqa: ASYNC251 - nothing else runs here
            with client.open_dump(rid) as dump:
                assert np.array_equal(dump.hidden, expected.hidden)
            client.cleanup(rid.run)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
        errors = process.stderr.read()

    assert answer["output_ids"] == [expected.next_token]
    assert (info.url, info.pid, info.layers) == (url, process.pid, (0, 2, 5))
    assert info.capture_hash == engine.description.capture_hash
    assert process.returncode == 0, errors
    assert not spool_path.exists()  # noqa: ASYNC240 - nothing else runs here


def test_a_second_server_on_the_same_spool_is_refused_and_a_killed_one_is_seen_as_dead(
    spool_path: Path, serving: Any
) -> None:
    with serving(None, spool_path) as (first, _):
        view = SpoolView(spool_path)
        assert view.server_alive()

        with serving(Path("unused"), spool_path) as (second, url):
            assert url == ""
            assert second.wait(timeout=120) != 0
            assert f"'pid': {first.pid}" in second.stderr.read()

        first.send_signal(signal.SIGKILL)
        first.wait()
        assert not view.server_alive()
        assert view.server() is None


def test_a_port_that_is_taken_is_refused(spool_path: Path, serving: Any) -> None:
    with serving(None, spool_path) as (_, url):
        port = int(url.rpartition(":")[2])

        with serving(Path("unused"), spool_path.with_name("other"), port=port) as (second, _):
            assert second.wait(timeout=120) != 0
            assert "RefusedError: cannot serve on 127.0.0.1" in second.stderr.read()


@pytest.mark.parametrize("host", ["::1"])
async def test_an_ipv6_address_is_served_too(spool_path: Path, serving: Any, host: str) -> None:
    with serving(None, spool_path, host=host) as (_, url):
        assert url.startswith("http://[::1]:")
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as response:
            assert response.status == 200

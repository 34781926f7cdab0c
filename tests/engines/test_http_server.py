"""The HTTP interface and the hand-over, with an engine that needs no model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from extraction.spool import ErrorReason, RequestId

if TYPE_CHECKING:
    from collections.abc import Callable


async def _until(condition: Callable[[], object]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


async def _begun(served: Any, rid: object) -> None:
    await _until(lambda: str(rid) in served.worker.in_flight)


async def test_a_request_becomes_a_dump_and_an_answer_as_sglang_gives(served: Any) -> None:
    ids = [int(token) for token in np.random.default_rng(0).integers(20, 100, 950)]
    rid = served.rid(sample=3, rows=950)

    status, answer = await served.generate(input_ids=ids, rid=str(rid), extra_key="only mine")

    assert status == 200
    meta = answer["meta_info"]
    assert answer["output_ids"] == []
    assert (meta["id"], meta["prompt_tokens"], meta["cached_tokens"]) == (str(rid), 950, 0)
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    await _until(lambda: rid in served.client.scan().finished)
    with served.client.open_dump(rid) as dump:
        assert dump.input_ids.tolist() == ids
        assert np.array_equal(dump.hidden, served.engine.states(np.array(ids, np.int32)))
        assert dump.metadata.instance == served.server.instance


async def test_many_requests_at_once_run_alone_and_in_the_order_of_arrival(served: Any) -> None:
    served.engine.go.clear()
    rids = [served.rid(sample, rows=100 + sample) for sample in range(16)]
    tasks = []
    for rid in rids:
        ids = [20 + rid.sample] * rid.rows
        tasks.append(asyncio.create_task(served.generate(input_ids=ids, rid=str(rid))))
        await _begun(served, rid)

    served.engine.go.set()
    answers = await asyncio.gather(*tasks)

    assert [answer["meta_info"]["id"] for _, answer in answers] == [str(rid) for rid in rids]
    assert [ids[0] for ids in served.engine.seen] == [20 + sample for sample in range(16)]
    await _until(lambda: len(served.client.scan().finished) == 16)


async def test_a_list_of_sequences_is_answered_by_a_list(served: Any) -> None:
    rids = [str(served.rid(sample, rows=2)) for sample in range(2)]

    _, named = await served.generate(
        input_ids=[[1, 2], [3, 4]],
        rid=rids,
        sampling_params=[{"max_new_tokens": 1}, {"max_new_tokens": 1}],
    )
    _, suffixed = await served.generate(input_ids=[[1], [2]], rid="both")
    _, unnamed = await served.generate(input_ids=[[1]])

    assert [one["meta_info"]["id"] for one in named] == rids
    assert [one["output_ids"] for one in named] == [[2], [4]]
    assert [one["meta_info"]["id"] for one in suffixed] == ["both_0", "both_1"]
    assert len(unnamed) == 1


async def test_a_request_of_nobodys_run_is_answered_and_not_captured(served: Any) -> None:
    status, answer = await served.generate(
        input_ids=[5, 6], rid="HEALTH_CHECK", sampling_params={"max_new_tokens": 1}
    )

    assert status == 200
    assert answer["output_ids"] == [6]
    served.worker.close()
    assert served.client.scan().allocated_bytes == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "input_ids is missing"),
        ({"text": "hello"}, "input_ids is missing"),
        ({"input_ids": []}, "at least one token"),
        ({"input_ids": [[]]}, "at least one token"),
        ({"input_ids": "1 2 3"}, "at least one token"),
        ({"input_ids": [1, 2.5]}, "integers in 0..99"),
        ({"input_ids": [1, True]}, "integers in 0..99"),
        ({"input_ids": [1, 100]}, "integers in 0..99"),
        ({"input_ids": [-1]}, "integers in 0..99"),
        ({"input_ids": [1] * 2001}, "longer than the model's context length"),
        ({"input_ids": [[1], [2]], "rid": ["a"]}, "list of 2 strings"),
        ({"input_ids": [1], "rid": 7}, "rid must be"),
        ({"input_ids": [1], "stream": True}, "stream"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 2}}, "must be 0 or 1"),
        ({"input_ids": [1], "sampling_params": {}}, "must be 0 or 1"),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_with_the_reason(
    served: Any, body: dict[str, Any], message: str
) -> None:
    status, answer = await served.generate(**body)

    assert status == 400
    assert message in answer["error"]["message"]


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[1]"])
async def test_a_body_that_is_no_json_object_is_refused(served: Any, content: bytes) -> None:
    async with served.http.post("/generate", data=content) as response:
        assert response.status == 400
        assert "JSON" in (await response.json())["error"]["message"]


async def test_an_id_that_is_in_flight_is_refused_and_may_come_again_later(served: Any) -> None:
    served.engine.go.clear()
    first = asyncio.create_task(served.generate(input_ids=[1], rid="twice"))
    await _begun(served, "twice")

    status, answer = await served.generate(input_ids=[1], rid="twice")
    batch_status, _ = await served.generate(input_ids=[[1], [1]], rid=["same", "same"])

    assert (status, batch_status) == (400, 400)
    assert "Duplicate request ID" in answer["error"]["message"]
    served.engine.go.set()
    assert (await first)[0] == 200
    assert (await served.generate(input_ids=[1], rid="twice"))[0] == 200


async def test_an_aborted_request_is_not_run_and_leaves_nothing(served: Any) -> None:
    served.engine.go.clear()
    rids = [served.rid(sample, rows=5) for sample in range(3)]
    tasks = []
    for rid in rids:
        body = {"input_ids": [rid.sample] * 5, "rid": str(rid)}
        tasks.append(asyncio.create_task(served.generate(**body)))
        await _begun(served, rid)

    for rid in rids[:2]:  # the first has begun, the second has not
        async with served.http.post("/abort_request", json={"rid": str(rid)}) as response:
            assert response.status == 200
    served.engine.go.set()
    answers = [answer for _, answer in await asyncio.gather(*tasks)]

    finishes = [answer["meta_info"]["finish_reason"]["type"] for answer in answers]
    assert finishes == ["length", "abort", "length"]
    assert [ids[0] for ids in served.engine.seen] == [0, 2]
    await _until(lambda: served.client.scan().finished)
    scan = served.client.scan()
    assert list(scan.finished) == [rids[2]]
    assert not scan.partial
    assert not scan.errors


async def test_a_client_that_hangs_up_has_aborted(served: Any) -> None:
    served.engine.go.clear()
    first = asyncio.create_task(served.generate(input_ids=[1], rid="first"))
    await _begun(served, "first")
    gone = asyncio.create_task(served.generate(input_ids=[2], rid="gone"))
    await _begun(served, "gone")

    gone.cancel()
    await _until(lambda: "gone" not in served.worker.in_flight)

    served.engine.go.set()
    await first
    assert served.engine.seen == [[1]]


async def test_an_abort_without_an_id_is_refused(served: Any) -> None:
    async with served.http.post("/abort_request", json={}) as response:
        assert response.status == 400


async def test_a_failing_forward_is_an_error_file_and_the_server_goes_on(served: Any) -> None:
    rid = served.rid(sample=1, rows=2)

    status, answer = await served.generate(input_ids=[13, 1], rid=str(rid))

    assert status == 500
    assert "unlucky" in answer["error"]["message"]
    failure = served.client.take_error(rid)
    assert failure.reason == ErrorReason.ENGINE
    assert "unlucky" in failure.detail
    assert (await served.generate(input_ids=[1]))[0] == 200


@pytest.mark.parametrize(("promised", "reason"), [(3, "incomplete"), (1, "mismatch")])
async def test_a_request_of_another_length_than_promised_is_an_error_file(
    served: Any, promised: int, reason: str
) -> None:
    rid = served.rid(sample=1, rows=promised)

    await served.generate(input_ids=[1, 2], rid=str(rid))
    await _until(lambda: rid in served.client.scan().errors)

    assert served.client.take_error(rid).reason == reason
    assert not served.client.scan().partial


async def test_a_dump_larger_than_the_spool_is_an_error_file_and_the_server_goes_on(
    served: Any,
) -> None:
    rid = RequestId("0123456789ab", 0, 0, 10**11)

    status, _ = await served.generate(input_ids=[1, 2], rid=str(rid))
    await _until(lambda: rid in served.client.scan().errors)

    assert status == 200
    assert served.client.take_error(rid).reason == ErrorReason.FULL
    small = served.rid(sample=1, rows=1)
    await served.generate(input_ids=[1], rid=str(small))
    await _until(lambda: small in served.client.scan().finished)


async def test_the_heartbeat_counts_forwards_and_rows(served: Any) -> None:
    before = served.client.heartbeat()

    for sample in range(3):
        await served.generate(input_ids=[1, 2], rid=str(served.rid(sample, rows=2)))
    await _until(lambda: served.client.heartbeat().rows == before.rows + 6)

    assert served.client.heartbeat().forwards == before.forwards + 3


async def test_the_server_describes_itself(served: Any) -> None:
    async with served.http.get("/health") as response:
        assert response.status == 200
    async with served.http.get("/model_info") as response:
        assert (await response.json())["model_path"] == "none"
    async with served.http.get("/server_info") as response:
        about = await response.json()
    async with served.http.get("/nothing") as response:
        missing = response.status, await response.json()

    assert about["layers"] == [0, 2]
    assert about["capture_hash"] == "c" * 64
    assert missing[0] == 404
    assert missing[1]["error"]["message"] == "Not Found"

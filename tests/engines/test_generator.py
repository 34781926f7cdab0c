"""How generations come, go, fail and are aborted, with a decoder that needs no model."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from extraction.engines.generation import Answer, GenerateRequest, Generator
from extraction.engines.http_server import make_app
from extraction.engines.in_flight import DuplicateRequestError, InFlight
from extraction.engines.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import numpy.typing as npt

ENDLESS = 10**9


class CountingEngine:
    """Each token is one more than the one before; a prompt of 13 breaks. Waits when told to."""

    def __init__(self) -> None:
        self.room_tokens = 2 * ENDLESS
        """Of each decoder."""
        self.go = threading.Event()
        self.go.set()
        self.begun: list[int] = []
        """First tokens of the prompts."""
        self.widest = 0
        """Most sequences side by side."""

    def decoder(self) -> CountingDecoder:
        """See `Generating`."""
        return CountingDecoder(self)


class CountingDecoder:
    """See `Decoder`."""

    stop_token_ids: frozenset[int] = frozenset()

    def __init__(self, engine: CountingEngine) -> None:
        self._engine = engine
        self._last: list[int] = []
        self._rooms: list[int] = []

    def has_room(self, tokens: int) -> bool:
        """See `Decoder`."""
        return sum(self._rooms) + tokens <= self._engine.room_tokens

    def add(self, input_ids: npt.NDArray[np.int32], sampling: Sampling) -> int:
        """See `Decoder`."""
        self._engine.begun.append(int(input_ids[0]))
        if input_ids[0] == 13:
            raise RuntimeError("unlucky")
        self._last.append(int(input_ids[-1]) + 1)
        self._rooms.append(len(input_ids) + sampling.max_new_tokens)
        self._engine.widest = max(self._engine.widest, len(self._last))
        return self._last[-1]

    def step(self) -> list[int]:
        """See `Decoder`."""
        time.sleep(0.001)
        self._engine.go.wait()
        self._last = [token + 1 for token in self._last]
        return list(self._last)

    def remove(self, place: int) -> None:
        """See `Decoder`."""
        for each in (self._last, self._rooms):
            each[place] = each[-1]
            del each[-1]


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine()


@pytest.fixture
def in_flight() -> InFlight:
    return InFlight()


@pytest.fixture
def generator(engine: CountingEngine, in_flight: InFlight) -> Iterator[Generator]:
    one = Generator(engine, in_flight, threads=1)
    yield one
    engine.go.set()
    one.close()


def _request(token: int, new_tokens: int) -> GenerateRequest:
    return GenerateRequest(str(token), np.array([token], np.int32), Sampling(new_tokens))


def test_what_breaks_ends_the_requests_that_were_computed_together_and_no_later_ones(
    engine: CountingEngine, generator: Generator
) -> None:
    engine.go.clear()
    (beside,) = generator.submit([_request(5, ENDLESS)])
    (broken,) = generator.submit([_request(13, 3)])
    engine.go.set()

    for future in (beside, broken):
        with pytest.raises(RuntimeError, match="unlucky"):
            future.result()
    (later,) = generator.submit([_request(5, 3)])
    assert later.result() == Answer((6, 7, 8))


@pytest.mark.parametrize(("room_tokens", "side_by_side"), [(21, 1), (22, 2)])
def test_a_sequence_waits_until_there_is_room_for_it(
    engine: CountingEngine, generator: Generator, room_tokens: int, side_by_side: int
) -> None:
    engine.room_tokens = room_tokens

    answers = [f.result() for f in generator.submit([_request(20, 10), _request(40, 10)])]

    assert answers == [Answer(tuple(range(21, 31))), Answer(tuple(range(41, 51)))]
    assert engine.widest == side_by_side


def test_a_sequence_that_no_room_is_made_for_is_generated_alone(
    engine: CountingEngine, generator: Generator
) -> None:
    engine.room_tokens = 1

    answers = [f.result() for f in generator.submit([_request(20, 2), _request(40, 2)])]

    assert [answer.tokens for answer in answers] == [(21, 22), (41, 42)]


def test_a_request_that_is_aborted_while_it_waits_is_not_begun(
    engine: CountingEngine, generator: Generator, in_flight: InFlight
) -> None:
    engine.room_tokens = 4
    engine.go.clear()
    running, waiting = generator.submit([_request(20, 3), _request(40, 3)])

    in_flight.abort("40")
    engine.go.set()

    assert waiting.result() == Answer(aborted=True)
    assert running.result() == Answer((21, 22, 23))
    assert engine.begun == [20]


def test_closing_aborts_what_is_computed_and_what_waits(
    engine: CountingEngine, generator: Generator
) -> None:
    engine.room_tokens = ENDLESS
    running, waiting = generator.submit([_request(20, ENDLESS), _request(40, ENDLESS)])

    generator.close()

    assert running.result(0).aborted
    assert waiting.result(0) == Answer(aborted=True)


def test_an_id_is_in_flight_once_and_may_come_again_when_it_has_ended(
    engine: CountingEngine, generator: Generator, in_flight: InFlight
) -> None:
    engine.go.clear()
    (first,) = generator.submit([_request(20, 2)])

    for requests in ([_request(40, 2), _request(20, 2)], [_request(40, 2), _request(40, 2)]):
        with pytest.raises(DuplicateRequestError, match="Duplicate request ID"):
            generator.submit(requests)
    assert "40" not in in_flight  # all or none

    engine.go.set()
    first.result()
    assert generator.submit([_request(20, 2)])[0].result().tokens == (21, 22)


@pytest.fixture
async def both(served: Any, engine: CountingEngine) -> AsyncIterator[TestClient[Any, Any]]:
    """Serve captures and generations; each of two threads has room for one sequence."""
    engine.room_tokens = 1
    generator = Generator(engine, served.worker.in_flight, threads=2)
    about = replace(served.engine.description, max_tokens=2 * ENDLESS)
    app = make_app(served.worker, about, generator)
    async with TestClient(TestServer(app, handler_cancellation=True)) as http:
        yield http
    engine.go.set()
    generator.close()


async def _post(http: TestClient[Any, Any], sampling: Any, **body: Any) -> tuple[int, Any]:
    body = {"input_ids": [5], "sampling_params": sampling, **body}
    async with http.post("/generate", json=body) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("sampling", "generated"),
    [
        ({"max_new_tokens": 0, "temperature": 0}, False),  # what `extract` sends
        ({"max_new_tokens": 0, "temperature": 0.7}, False),
        ({"max_new_tokens": 0, "stop_token_ids": [6]}, False),
        ({"max_new_tokens": 1, "temperature": 0}, False),
        ({"max_new_tokens": 1, "top_p": 0.5}, False),
        ({"max_new_tokens": 1, "temperature": 0.7}, True),
        ({"max_new_tokens": 1, "temperature": 0, "stop_token_ids": [6]}, True),
        ({"max_new_tokens": 2}, True),
    ],
)
async def test_a_body_that_asks_for_states_is_captured_and_one_that_asks_for_text_is_not(
    both: TestClient[Any, Any],
    served: Any,
    engine: CountingEngine,
    sampling: dict[str, Any],
    *,
    generated: bool,
) -> None:
    status, answer = await _post(both, sampling)

    assert status == 200
    assert len(answer["output_ids"]) == sampling["max_new_tokens"]
    assert (served.engine.seen, engine.begun) == (([], [5]) if generated else ([[5]], []))
    stopped = generated and "stop_token_ids" in sampling
    assert (answer["meta_info"]["finish_reason"]["type"] == "stop") == stopped


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"max_new_tokens": -1}, "an integer of at least 1"),
        ({}, "an integer of at least 1"),
        ([{"max_new_tokens": 0}, {"max_new_tokens": 5}], "the same for all sequences"),
    ],
)
async def test_a_body_that_is_neither_is_refused(
    both: TestClient[Any, Any], sampling: Any, message: str
) -> None:
    status, answer = await _post(both, sampling)

    assert status == 400
    assert message in answer["error"]["message"]


async def test_an_id_is_in_flight_once_among_captures_and_generations(
    both: TestClient[Any, Any], served: Any, engine: CountingEngine
) -> None:
    served.engine.go.clear()
    engine.go.clear()
    begun = [
        asyncio.create_task(_post(both, {"max_new_tokens": tokens}, rid=rid))
        for tokens, rid in ((0, "capture"), (3, "generation"))
    ]
    await _until_in_flight(served, "capture", "generation")

    second = [
        await _post(both, {"max_new_tokens": tokens}, rid=rid)
        for tokens, rid in ((3, "capture"), (0, "generation"))
    ]

    assert [status for status, _ in second] == [400, 400]
    served.engine.go.set()
    engine.go.set()
    assert [status for status, _ in await asyncio.gather(*begun)] == [200, 200]


async def test_where_one_of_a_batch_breaks_the_others_are_not_generated_for_nobody(
    both: TestClient[Any, Any], served: Any
) -> None:
    status, answer = await _post(
        both, {"max_new_tokens": ENDLESS}, input_ids=[[5], [13]], rid=["other", "broken"]
    )

    assert status == 500
    assert "unlucky" in answer["error"]["message"]
    await _until_in_flight(served)


async def test_a_generation_is_aborted_over_http(both: TestClient[Any, Any], served: Any) -> None:
    asked = asyncio.create_task(_post(both, {"max_new_tokens": ENDLESS}, rid="long"))
    await _until_in_flight(served, "long")

    async with both.post("/abort_request", json={"rid": "long"}) as response:
        assert response.status == 200

    assert (await asked)[1]["meta_info"]["finish_reason"]["type"] == "abort"


async def _until_in_flight(served: Any, *rids: str) -> None:
    for _ in range(12_000):
        if served.worker.in_flight._aborted.keys() == set(rids):
            return
        await asyncio.sleep(0.005)
    raise TimeoutError

"""Generated tokens, against transformers itself; and captures beside them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer

from extraction.engines.generation import GenerateRequest, Generator, make_generator
from extraction.engines.http_server import make_app
from extraction.engines.sampling import Sampling
from extraction.engines.transformers_model import TransformersEngine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

PROMPTS = [
    np.random.default_rng(seed).integers(0, 512, 5 + 29 * (seed % 5)).astype(np.int32)
    for seed in range(40)
]


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> TransformersEngine:
    """Load the model in float32: in 16 bits two tokens often are equally likely."""
    return TransformersEngine(tiny_llama, layers=(0, 2, 5), dtype="float32")


@pytest.fixture
def generator(engine: TransformersEngine) -> Iterator[Generator]:
    one = make_generator(engine, threads=1)
    assert one is not None
    yield one
    one.close()


def _plain(engine: TransformersEngine, prompt: npt.NDArray[np.int32], tokens: int) -> list[int]:
    ids = torch.from_numpy(prompt).long()[None]
    out = engine._model.generate(ids, max_new_tokens=tokens, do_sample=False, eos_token_id=None)
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


def _tokens(seed: int) -> int:
    return 3 + seed % 7


def test_sequences_that_come_and_go_beside_each_other_are_answered_as_each_alone(
    engine: TransformersEngine, generator: Generator
) -> None:
    requests = [
        GenerateRequest(str(seed), prompt, Sampling(_tokens(seed)))
        for seed, prompt in enumerate(PROMPTS)
    ]

    answers = [future.result() for future in generator.submit(requests)]

    expected = [_plain(engine, prompt, _tokens(seed)) for seed, prompt in enumerate(PROMPTS)]
    assert [list(answer.tokens) for answer in answers] == expected
    assert len({tuple(tokens[:3]) for tokens in expected}) > 30  # they do say different things
    assert not any(answer.stopped or answer.aborted for answer in answers)


def test_an_answer_ends_with_its_stop_token(
    engine: TransformersEngine, generator: Generator
) -> None:
    whole = _plain(engine, PROMPTS[0], 6)
    stop = whole[3]
    assert stop not in whole[:3]

    (future,) = generator.submit(
        [GenerateRequest("one", PROMPTS[0], Sampling(6, stop_token_ids=frozenset({stop})))]
    )

    assert list(future.result().tokens) == whole[:4]
    assert future.result().stopped


def test_a_high_temperature_says_something_else_each_time(generator: Generator) -> None:
    requests = [GenerateRequest(str(n), PROMPTS[0], Sampling(8, temperature=5.0)) for n in range(4)]

    answers = {future.result().tokens for future in generator.submit(requests)}

    assert len(answers) == 4


def test_what_is_captured_beside_a_generation_is_the_same_bit_for_bit(
    engine: TransformersEngine, generator: Generator
) -> None:
    def capture(ids: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        return engine.capture(ids, predict=False, progress=lambda: None).hidden

    alone = [capture(prompt) for prompt in PROMPTS]
    requests = [
        GenerateRequest(str(n), prompt, Sampling(100)) for n, prompt in enumerate(PROMPTS[:8])
    ]
    futures = generator.submit(requests)

    with ThreadPoolExecutor(2) as threads:
        beside = list(threads.map(capture, PROMPTS))

    assert not all(future.done() for future in futures)
    assert all(np.array_equal(one, other) for one, other in zip(alone, beside, strict=True))


def test_an_aborted_request_ends_at_its_next_token(generator: Generator) -> None:
    (future,) = generator.submit([GenerateRequest("long", PROMPTS[0], Sampling(900))])

    generator.abort("long")

    answer = future.result()
    assert answer.aborted
    assert len(answer.tokens) < 900


async def test_the_answer_over_http_has_the_form_of_sglang(
    engine: TransformersEngine, generator: Generator, served: Any
) -> None:
    app = make_app(served.worker, engine.description, generator)
    async with TestClient(TestServer(app)) as http:

        async def post(**sampling: Any) -> tuple[int, Any]:
            ids = PROMPTS[0].tolist()
            body = {"rid": "r", "input_ids": ids, "sampling_params": sampling}
            async with http.post("/generate", json=body) as response:
                return response.status, await response.json()

        status, answer = await post(max_new_tokens=4, temperature=0)
        one = await post(max_new_tokens=4, temperature=0, top_p=0.5)
        other = await post(max_new_tokens=2000, temperature=0)
        third = await post(max_new_tokens=-1)

    meta = answer["meta_info"]
    assert status == 200
    assert answer["output_ids"] == _plain(engine, PROMPTS[0], 4)
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("r", 5, 4)
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert [one[0], other[0], third[0]] == [400, 400, 400]
    assert "sampling_params.top_p is not supported" in one[1]["error"]["message"]
    assert "maximum context length of 1024" in other[1]["error"]["message"]
    assert "max_new_tokens" in third[1]["error"]["message"]


def test_a_model_with_windows_does_not_generate(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TransformersEngine(tiny_llama, layers=(0, 2, 5), dtype="float32")
    monkeypatch.setattr(
        engine._model.config, "layer_types", ["sliding_attention"] * 6, raising=False
    )

    assert make_generator(engine, threads=1) is None

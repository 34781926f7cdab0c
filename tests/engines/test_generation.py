"""Generated tokens, against transformers itself; and captures beside them."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from aiohttp.test_utils import TestClient, TestServer

from extraction.engines import decoding
from extraction.engines.generation import GenerateRequest, Generator, make_generator
from extraction.engines.http_server import make_app
from extraction.engines.in_flight import InFlight
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
def in_flight() -> InFlight:
    return InFlight()


@pytest.fixture
def generator(engine: TransformersEngine, in_flight: InFlight) -> Iterator[Generator]:
    one = make_generator(engine, in_flight, threads=1)
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


def test_a_long_sequence_that_has_left_takes_no_room_from_the_others(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_bytes = 6 * 2 * 2 * 16 * 4  # layers, keys and values, heads, width, float32
    monkeypatch.setattr(decoding, "CACHE_BYTES", 2048 * token_bytes)
    prompts = [prompt for prompt in PROMPTS[1:] if len(prompt) < 100]
    decoder = engine.decoder()
    decoder.add(PROMPTS[0], Sampling(900))
    answers = [[decoder.add(prompts[0], Sampling(30))]]
    assert not decoder.has_room(128)
    answers[0].append(decoder.step()[1])

    decoder.remove(0)
    while decoder.has_room(128):
        answers.append([decoder.add(prompts[len(answers)], Sampling(30))])
    for _ in range(4):
        for answer, token in zip(answers, decoder.step(), strict=True):
            answer.append(token)

    assert len(answers) == 2048 // 128
    held = [half.nbytes for pair in decoder._cache._held for half in pair]
    assert sum(held) <= decoding.CACHE_BYTES
    for prompt, answer in zip(prompts, answers, strict=False):
        assert answer == _plain(engine, prompt, len(answer))


def test_an_aborted_request_ends_at_its_next_token(
    generator: Generator, in_flight: InFlight
) -> None:
    (future,) = generator.submit([GenerateRequest("long", PROMPTS[0], Sampling(900))])

    in_flight.abort("long")

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

    assert make_generator(engine, InFlight(), threads=1) is None


@pytest.mark.parametrize(
    ("rope", "generates"),
    [
        ({"rope_type": "linear", "factor": 2.0}, True),
        ({"rope_type": "dynamic", "factor": 2.0}, False),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 512,
            },
            False,
        ),
    ],
)
def test_a_model_whose_frequencies_depend_on_the_length_does_not_generate(
    tiny_llama: Path, tmp_path: Path, rope: dict[str, Any], *, generates: bool
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "copy")
    path = tmp_path / "copy/config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"rope_parameters": {"rope_theta": 1e4, **rope}}))
    engine = TransformersEngine(tmp_path / "copy", layers=(0,), dtype="float32")

    assert (make_generator(engine, InFlight(), threads=1) is not None) == generates


@pytest.mark.parametrize(("scaling", "generates"), [(1.0, True), (8.0, False)])
def test_a_model_that_scales_what_its_head_says_does_not_generate(
    tmp_path: Path, scaling: float, *, generates: bool
) -> None:
    config = transformers.GraniteConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        logits_scaling=scaling,
    )
    transformers.GraniteForCausalLM(config).save_pretrained(tmp_path)
    engine = TransformersEngine(tmp_path, layers=(0,), dtype="float32")

    assert (make_generator(engine, InFlight(), threads=1) is not None) == generates

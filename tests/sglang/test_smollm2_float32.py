"""SmolLM2-135M in float32 on real conversations: the numbers are those of transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import hsstore.cli  # noqa: F401  # registers the commands
from hsstore.cli.app import app as commands
from hsstore.store import Store
from tests.sglang.checks import (
    PATIENCE_SECONDS,
    check_most_came_in_pieces,
    check_prefix_cache_is_on,
    extract_in_a_crowd,
    run_record,
    start_run,
)
from tests.sglang.evidence import check_store_equals_transformers, check_store_equals_witness
from tests.sglang.samples import CHATS, KEEP_ALL, write_chats
from tests.sglang.serving import SglangServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES, MAX_TOKENS = 8, 192
LAYERS = (1, 14, 26)
"""EAGLE-3's default for 30 layers."""


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[SglangServer]:
    """Serve with chunks smaller than the prompts, the prefix cache on."""
    chunks = ("--chunked-prefill-size", "96")
    with serving(smollm2, "--dtype", "float32", sglang=chunks) as one:
        yield one


@pytest.fixture(scope="module")
def store(server: SglangServer, smollm2: Path, room: Path) -> Store:
    """Extract conversations that share a long system prompt."""
    data = write_chats(room / "chats.jsonl", SAMPLES)
    options = ("--data", data, "--model", smollm2, "--max-tokens", str(MAX_TOKENS), *KEEP_ALL)
    return extract_in_a_crowd(room / "float32.zarr", server, *options, in_flight=SAMPLES)


def test_every_row_is_what_transformers_computes(store: Store, smollm2: Path) -> None:
    assert store.spec.model.dtype == "float32"
    check_store_equals_transformers(store, smollm2)


def test_the_store_is_what_the_server_held_bit_for_bit(store: Store, server: SglangServer) -> None:
    seen = check_store_equals_witness(store, server.witness)

    assert len(seen) == SAMPLES
    check_most_came_in_pieces(seen)


def test_conversations_are_in_their_order_behind_their_shared_beginning(
    store: Store, smollm2: Path
) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415  # takes seconds

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    first = store.input_ids(0)[:80].tolist()
    for sample, line in enumerate(CHATS.read_text().splitlines()[:SAMPLES]):
        assert f'"{store.sample_id(sample)}"' in line
        assert store.input_ids(sample)[:80].tolist() == first
        assert 100 < store.length[sample] <= MAX_TOKENS
    assert "careful assistant" in tokenizer.decode(first)


def test_the_prefix_cache_was_on(store: Store, server: SglangServer) -> None:
    check_prefix_cache_is_on(server.url, store.input_ids(0).tolist())
    assert run_record(store).server_flags["radix_cache"] is True


def test_the_store_says_how_its_server_computed(store: Store) -> None:
    record, model = run_record(store), store.spec.model
    flags = record.server_flags

    assert record.engine == "sglang"
    assert record.engine_version == "0.5.23"
    assert (model.layers, model.final, model.num_layers) == (LAYERS, "post-norm", 30)
    assert model.norm.epsilon == 1e-5
    assert store.plan_array("norm_weight").shape == (576,)
    # SGLang captures the input of a layer: one more than the layer whose output it is.
    assert flags["layers_to_capture"] == [layer + 1 for layer in LAYERS]
    assert (flags["tp_size"], flags["dp_size"], flags["attention_dp"]) == (1, 1, False)
    assert flags["attention_backend"] == "torch_native"
    assert flags["chunked_prefill_size"] == 96
    assert flags["quantization"] is None
    assert flags["device"] == "cpu"


def test_answers_that_it_gives_are_the_models_own_and_extract_takes_them(
    server: SglangServer, smollm2: Path, new_store: Path
) -> None:
    """`hsstore regenerate`: the stored final states predict the answers, token by token."""
    prompts, answers = (new_store.with_name(name) for name in ("prompts.jsonl", "answers.jsonl"))
    turns = [["What is the capital of France?", "And of Italy?"], ["Count to five."]]
    prompts.write_text("".join(json.dumps({"turns": one}) + "\n" for one in turns))
    command = ["regenerate", prompts, answers, "--server", server.url, "--model", smollm2]
    said = CliRunner().invoke(commands, [*map(str, command), "--max-new-tokens", "12"])

    run = start_run(new_store, server, "--data", answers, "--model", smollm2)
    ended = run.wait(PATIENCE_SECONDS)

    assert said.exit_code == 0, said.output
    assert "2 of 2 prompts answered" in said.stdout
    records = [json.loads(line) for line in answers.read_text().splitlines()]
    asked = [[one["content"] for one in record["messages"][::2]] for record in records]
    assert sorted(asked) == sorted(turns)
    assert ended.code == 0, ended.log
    store = Store.open(new_store)
    output = load_file(smollm2 / "model.safetensors")["model.embed_tokens.weight"]
    for sample, record in enumerate(records):
        here = np.flatnonzero(store.loss_mask(sample))
        predicted = store[sample].hidden_states[here - 1, -1] @ output.astype(np.float32).T
        wrong = predicted.argmax(axis=1) != store.input_ids(sample)[here]
        # What was cut off at 12 tokens is closed by the template, not by the model.
        assert wrong.sum() <= record["metadata"]["regenerated"]["ends"].count("length")
        assert len(here) >= 4

"""SmolLM2-135M in float32 on real conversations: the numbers are those of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sglang.checks import (
    check_most_came_in_pieces,
    check_prefix_cache_is_on,
    extract_in_a_crowd,
    run_record,
)
from tests.sglang.evidence import check_store_equals_transformers, check_store_equals_witness
from tests.sglang.samples import CHATS, KEEP_ALL, write_chats
from tests.sglang.serving import SglangServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hsstore.store import Store

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

"""A tiny DeepSeek-V3 (MLA with a q_lora, YaRN, MoE), in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sglang.checks import (
    check_most_came_in_pieces,
    check_prefix_cache_is_on,
    check_tokens,
    extract_in_a_crowd,
    run_record,
)
from tests.sglang.evidence import check_store_equals_transformers, check_store_equals_witness
from tests.sglang.models import make_deepseek
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import SglangServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hsstore.store import Store

SAMPLES, LONGEST = 48, 200
LAYERS = "0,2,4"


@pytest.fixture(scope="module")
def model(room: Path) -> Path:
    """Give a random checkpoint."""
    return make_deepseek(room / "deepseek", seed=1)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[SglangServer]:
    """Serve with chunks smaller than most prompts, the prefix cache on."""
    with serving(model, "--layers", LAYERS, sglang=("--chunked-prefill-size", "64")) as one:
        yield one


@pytest.fixture(scope="module")
def data(room: Path) -> Path:
    """Give samples of 1 to 200 tokens."""
    return write_samples(room / "deepseek.jsonl", draw_lengths(SAMPLES, LONGEST))


@pytest.fixture(scope="module")
def store(server: SglangServer, room: Path, data: Path) -> Store:
    """Extract them."""
    return extract_in_a_crowd(room / "deepseek.zarr", server, "--data", data, in_flight=32)


def test_every_row_is_what_transformers_computes(store: Store, model: Path) -> None:
    check_store_equals_transformers(store, model)


def test_the_store_is_what_the_server_held_bit_for_bit(store: Store, server: SglangServer) -> None:
    seen = check_store_equals_witness(store, server.witness)

    assert len(seen) == SAMPLES
    check_most_came_in_pieces(seen)


def test_samples_are_those_of_the_dataset_in_its_order(store: Store, data: Path) -> None:
    check_tokens(store, data)


def test_the_prefix_cache_was_on(store: Store, server: SglangServer) -> None:
    longest = int(store.length.argmax())
    check_prefix_cache_is_on(server.url, store.input_ids(longest).tolist())
    assert run_record(store).server_flags["radix_cache"] is True

"""A tiny Kimi-K2.5 (`KimiK25ForConditionalGeneration`), in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sglang.checks import (
    check_most_came_in_pieces,
    check_prefix_cache_is_on,
    check_tokens,
    extract_in_a_crowd,
    run_record,
)
from tests.sglang.evidence import check_store_equals_transformers, check_store_equals_witness
from tests.sglang.models import KIMI_ARGUMENTS, make_kimi, make_kimis_text_model
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES, LONGEST = 40, 160


def test_the_states_are_those_of_the_text_model(room: Path) -> None:
    model = make_kimi(room / "kimi", seed=3)
    text = make_kimis_text_model(room / "kimi-text", seed=3)
    data = write_samples(room / "kimi.jsonl", draw_lengths(SAMPLES, LONGEST))
    sglang = ("--chunked-prefill-size", "64", *KIMI_ARGUMENTS)
    with serving(model, "--layers", "0,2,4", sglang=sglang) as server:
        store = extract_in_a_crowd(room / "kimi.zarr", server, "--data", data, in_flight=24)
        seen = check_store_equals_witness(store, server.witness)
        check_prefix_cache_is_on(server.url, store.input_ids(int(store.length.argmax())).tolist())

    assert len(seen) == SAMPLES
    check_most_came_in_pieces(seen)
    check_tokens(store, data)
    check_store_equals_transformers(store, text)
    assert (store.spec.model.num_layers, store.spec.model.hidden) == (6, 64)
    assert run_record(store).server_flags["layers_to_capture"] == [1, 3, 5]

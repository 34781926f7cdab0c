"""SmolLM2-135M in its own bfloat16: the store holds what the server held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sglang.checks import check_most_came_in_pieces, extract_in_a_crowd
from tests.sglang.evidence import check_store_equals_transformers, check_store_equals_witness
from tests.sglang.samples import KEEP_ALL, write_chats
from tests.sglang.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES, MAX_TOKENS = 5, 128
RELATIVE_ERROR = 0.03
"""Computed in bfloat16 throughout, slots are 0.3 to 1.5 % from float32."""


def test_the_store_is_what_the_server_held_bit_for_bit(smollm2: Path, room: Path) -> None:
    data = write_chats(room / "chats.jsonl", SAMPLES)
    options = ("--data", data, "--model", smollm2, "--max-tokens", str(MAX_TOKENS), *KEEP_ALL)
    with serving(smollm2, sglang=("--chunked-prefill-size", "96")) as server:
        path = room / "bfloat16.zarr"
        store = extract_in_a_crowd(path, server, *options, in_flight=SAMPLES)
        seen = check_store_equals_witness(store, server.witness)

    assert store.spec.model.dtype == "bfloat16"
    assert len(seen) == SAMPLES
    check_most_came_in_pieces(seen)
    check_store_equals_transformers(store, smollm2, limit=RELATIVE_ERROR)

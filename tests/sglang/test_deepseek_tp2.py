"""A tiny DeepSeek-V3 on two tensor parallel ranks: one of them writes, both hold the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sglang.checks import (
    check_most_came_in_pieces,
    check_tokens,
    extract_in_a_crowd,
    run_record,
)
from tests.sglang.evidence import check_store_equals_transformers, check_store_equals_witness
from tests.sglang.models import make_deepseek
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES, LONGEST = 32, 150


def test_both_ranks_hold_what_the_store_holds(room: Path) -> None:
    model = make_deepseek(room / "deepseek-tp2", seed=2)
    data = write_samples(room / "tp2.jsonl", draw_lengths(SAMPLES, LONGEST))
    sglang = ("--tp-size", "2", "--chunked-prefill-size", "64")
    with serving(model, "--layers", "0,2,4", sglang=sglang) as server:
        store = extract_in_a_crowd(room / "tp2.zarr", server, "--data", data, in_flight=24)
        seen = check_store_equals_witness(store, server.witness, ranks=2)

    assert len(seen) == SAMPLES
    check_most_came_in_pieces(seen)
    check_tokens(store, data)
    check_store_equals_transformers(store, model)
    flags = run_record(store).server_flags
    assert (flags["tp_size"], flags["dp_size"], flags["attention_dp"]) == (2, 1, False)
    assert flags["layers_to_capture"] == [1, 3, 5]

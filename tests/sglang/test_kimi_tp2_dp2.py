"""A tiny Kimi-K2.5 with DP attention: two ranks, each with its own requests, and one spool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sglang.checks import (
    check_most_came_in_pieces,
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

SAMPLES, LONGEST = 32, 120


def test_both_ranks_write_into_one_spool(room: Path) -> None:
    model = make_kimi(room / "kimi-dp2", seed=4)
    text = make_kimis_text_model(room / "kimi-dp2-text", seed=4)
    data = write_samples(room / "dp2.jsonl", draw_lengths(SAMPLES, LONGEST))
    dp = ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention")
    sglang = (*dp, "--chunked-prefill-size", "64", *KIMI_ARGUMENTS)
    with serving(model, "--layers", "0,2,4", sglang=sglang) as server:
        store = extract_in_a_crowd(room / "dp2.zarr", server, "--data", data, in_flight=24)
        seen = check_store_equals_witness(store, server.witness)
        ranks = {path.name.split(".")[2] for path in server.witness.glob("*.npz")}

    assert ranks == {"0-0", "1-1"}
    assert len(seen) == SAMPLES
    check_most_came_in_pieces(seen)
    check_tokens(store, data)
    check_store_equals_transformers(store, text)
    flags = run_record(store).server_flags
    assert (flags["tp_size"], flags["dp_size"], flags["attention_dp"]) == (2, 2, True)

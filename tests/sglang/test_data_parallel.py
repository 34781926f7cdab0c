"""Two replicas of a tiny Llama behind SGLang's own balancer: two processes write into one spool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sglang.checks import (
    check_most_came_in_pieces,
    check_tokens,
    extract_in_a_crowd,
    run_record,
)
from tests.sglang.evidence import check_store_equals_transformers, check_store_equals_witness
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES, LONGEST = 60, 150


def test_the_store_is_what_either_replica_held(room: Path, tiny_llama: Path) -> None:
    data = write_samples(room / "replicas.jsonl", draw_lengths(SAMPLES, LONGEST))
    sglang = ("--dp-size", "2", "--chunked-prefill-size", "64")
    with serving(tiny_llama, "--layers", "0,2,4", sglang=sglang) as server:
        store = extract_in_a_crowd(room / "replicas.zarr", server, "--data", data, in_flight=32)
        seen = check_store_equals_witness(store, server.witness)
        replicas = [path.name.split(".")[2] for path in server.witness.glob("*.npz")]

    assert min(replicas.count("0-0"), replicas.count("1-0")) > SAMPLES // 4
    assert len(seen) == SAMPLES
    check_most_came_in_pieces(seen)
    check_tokens(store, data)
    check_store_equals_transformers(store, tiny_llama)
    flags = run_record(store).server_flags
    assert (flags["tp_size"], flags["dp_size"], flags["attention_dp"]) == (1, 2, False)

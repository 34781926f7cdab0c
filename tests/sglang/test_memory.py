"""A server whose cgroup has little memory: reserving a dump there would be a kill, not an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hsstore.store import Store
from tests.extraction.mounts import MIB
from tests.sglang.checks import PATIENCE_SECONDS, check_tokens, generate, start_run, verify
from tests.sglang.evidence import check_store_equals_witness
from tests.sglang.models import VOCABULARY
from tests.sglang.samples import write_samples
from tests.sglang.serving import serving
from tests.sglang.strangers import inside, memory_cgroup

if TYPE_CHECKING:
    from pathlib import Path

ROWS, SAMPLES = 1000, 40
ROW_BYTES = 4 * 256 * 4
LEFT_BYTES = 96 * MIB
"""Above what the idle server uses; all dumps together are 1.6 times as large."""


def test_the_server_survives_and_the_run_ends(
    tiny_llama: Path, room: Path, new_store: Path, tmp_path: Path
) -> None:
    assert SAMPLES * ROWS * ROW_BYTES > 1.5 * LEFT_BYTES
    data = write_samples(room / "memory.jsonl", [ROWS] * SAMPLES)
    with (
        memory_cgroup() as cgroup,
        serving(
            tiny_llama,
            *("--layers", "0,2,4"),
            sglang=("--chunked-prefill-size", "64"),
            prefix=inside(cgroup),
            witness=tmp_path,  # on a disk: in shared memory it would take what is left
        ) as server,
    ):
        for round_ in range(
            4
        ):  # what SGLang itself needs for such prompts is in use before the limit
            generate(server.url, range(3, 3 + VOCABULARY // 2), extra_key=str(round_))
            generate(server.url, [5] * ROWS, extra_key=str(round_))
        used = int((cgroup / "memory.usage_in_bytes").read_text())
        (cgroup / "memory.limit_in_bytes").write_text(str(used + LEFT_BYTES))
        # One block: no dump is given back before its end, if all would fit.
        one_block = ("--chunk-rows", "256", "--shard-rows", str(1 << 20))
        run = start_run(new_store, server, "--data", data, *one_block)
        ended = run.wait(PATIENCE_SECONDS)
        kills = dict(
            line.split() for line in (cgroup / "memory.oom_control").read_text().splitlines()
        )
        assert ended.code == 0, ended.log
        assert kills["oom_kill"] == "0"
        assert server.alive
        assert server.left_in_spool() == []
        verify(new_store)
        check_tokens(Store.open(new_store), data)
        check_store_equals_witness(Store.open(new_store), server.witness)

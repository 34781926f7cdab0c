"""Somebody removes the spool directory of a real server while a run is under way."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from hsstore.store import Store
from tests.extraction.processes import wait_until
from tests.sglang.checks import (
    PATIENCE_SECONDS,
    begin_run,
    check_tokens,
    generate,
    start_run,
    verify,
)
from tests.sglang.evidence import check_store_equals_witness
from tests.sglang.samples import draw_lengths, write_samples
from tests.sglang.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES, LONGEST = 200, 120


def test_the_run_says_so_the_server_lives_and_after_its_restart_all_is_extracted(
    tiny_llama: Path, new_store: Path, room: Path
) -> None:
    data = write_samples(room / "vanished.jsonl", draw_lengths(SAMPLES, LONGEST))
    chunks = ("--chunked-prefill-size", "64")
    with serving(tiny_llama, "--layers", "0,2,4", sglang=chunks) as server:
        run = begin_run(new_store, server, "--data", data, "--max-in-flight", "8")
        wait_until(lambda: _remove(server.spool))
        ended = run.wait(PATIENCE_SECONDS)

        assert ended.code == 75, ended.log
        assert "the spool cannot be read any more" in ended.log
        assert "restart the server, then run again" in ended.log
        assert "Traceback" not in ended.log
        assert 0 < len(check_store_equals_witness(Store.open(new_store), server.witness)) < SAMPLES

        again = start_run(new_store, server).wait(PATIENCE_SECONDS)

        assert again.code == 3, again.log
        assert f"no spool at {server.spool}" in again.log
        assert "restart" in again.log
        assert len(generate(server.url, range(3, 203))["output_ids"]) == 1
        assert "Traceback" not in server.sglang_log.read_text()

        server.kill()
        server.start().wait()
        last = start_run(new_store, server).wait(PATIENCE_SECONDS)

        assert last.code == 0, last.log
        assert server.left_in_spool() == []
        verify(new_store)
        check_tokens(Store.open(new_store), data)
        seen = check_store_equals_witness(Store.open(new_store), server.witness)
        assert len(seen) == SAMPLES


def _remove(spool: Path) -> bool:
    """Remove it, also while files appear in it."""
    subprocess.run(["rm", "-rf", spool], check=False, capture_output=True)
    return not spool.exists()

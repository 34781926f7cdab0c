"""What is true of every store that a healthy SGLang has filled."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.store import Store
from tests.extraction.processes import Extraction
from tests.sglang.serving import runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hsstore.spec import RunRecord
    from tests.sglang.evidence import Seen
    from tests.sglang.serving import SglangServer

SMALL_STORE = ("--chunk-rows", "32", "--shard-rows", "1024", "--span-samples", "16")


PATIENCE_SECONDS = 280.0
"""A busy machine takes ten times as long as an idle one; pytest ends after 300 s."""


def start_run(path: Path, server: SglangServer, *arguments: str | Path) -> Extraction:
    """Start `hsstore extract`."""
    run = Extraction(path, server, *arguments)
    runs.append(run)
    return run


def begin_run(path: Path, server: SglangServer, *arguments: str | Path) -> Extraction:
    """Start `hsstore extract` and wait until it has committed something."""
    run = start_run(path, server, *arguments, *SMALL_STORE)
    run.wait_for(lambda status: status.complete_now > 0, PATIENCE_SECONDS)
    return run


def extract_in_a_crowd(
    path: Path, server: SglangServer, *arguments: str | Path, in_flight: int
) -> Store:
    """Run `hsstore extract` with so many requests at once, then `hsstore verify`."""
    crowd = ("--max-in-flight", str(in_flight))
    run = start_run(path, server, *arguments, *SMALL_STORE, *crowd)
    run.wait_for(lambda status: status.in_flight >= in_flight // 2, PATIENCE_SECONDS)
    ended = run.wait(PATIENCE_SECONDS)
    assert ended.code == 0, ended.log
    assert "Traceback" not in ended.log
    verify(path)
    assert server.left_in_spool() == []
    check_canary(run_record(Store.open(path)))
    return Store.open(path)


def check_canary(record: RunRecord) -> None:
    """Prefixes asked for alone and within a batch were compared in every slot, and were the same."""
    canary = record.canary
    assert canary is not None
    assert canary.verdict in {"same", "rows"}
    assert canary.checks > 0
    assert min(slot.samples for slot in canary.slots) > 0


def verify(path: Path) -> None:
    """Run `hsstore verify`: every sample is there and sound."""
    command = [sys.executable, "-m", "hsstore", "verify", str(path), "--json"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["ok"]
    assert report["checked"] == len(Store.open(path))


def check_tokens(store: Store, data: Path) -> None:
    """Ids, tokens and their order are those of the dataset."""
    records = [json.loads(line) for line in data.read_text().splitlines()]
    assert len(store) == len(records)
    for sample, record in enumerate(records):
        assert store.sample_id(sample) == record["id"]
        np.testing.assert_array_equal(store.input_ids(sample), record["input_ids"])
        assert len(store[sample].hidden_states) == len(record["input_ids"])


def check_most_came_in_pieces(seen: dict[int, Seen], *, share: float = 0.5) -> None:
    """Chunked prefill has cut most prompts."""
    in_pieces = [sample for sample, one in seen.items() if one.pieces > 1]
    assert len(in_pieces) > share * len(seen)


def run_record(store: Store) -> RunRecord:
    """Return the record of the only run."""
    (record,) = store.runs()
    return record


def post(url: str, path: str, body: dict[str, Any], timeout_seconds: float = 120) -> Any:
    """Ask a server, as anybody may; returns the decoded answer."""
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout_seconds) as response:
        text = response.read()
    return json.loads(text) if text else None


def generate(url: str, tokens: Sequence[int], **more: Any) -> dict[str, Any]:
    """Have a server prefill and generate one token, as somebody else's request."""
    sampling = {"max_new_tokens": 1, "temperature": 0}
    body = {"input_ids": list(tokens), "sampling_params": sampling} | more
    answer: dict[str, Any] = post(url, "/generate", body)
    return answer


def check_prefix_cache_is_on(url: str, tokens: Sequence[int]) -> None:
    """Ask twice for a prompt: the second time it is answered from the cache."""
    generate(url, tokens)
    assert generate(url, tokens)["meta_info"]["cached_tokens"] >= len(tokens) // 2

"""`hsstore status` where several workers share a store: a line for each, and what they do together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

import hsstore.cli  # noqa: F401  # registers the commands
from extraction.status import RunStatus, run_directory
from extraction.status_report import SHOWN_COPIES, StatusReader
from extraction.watchdog.pages import RunPages
from hsstore.cli.app import app
from hsstore.testing.stores import commit_block, make_store

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES, TOKENS, WORKERS = 40, 10, 9


def of_worker(number: int, **changes: Any) -> RunStatus:
    """Return what a worker says of itself."""
    given: dict[str, Any] = {
        "run": f"{number:012x}",
        "worker": f"{number}/{WORKERS}",
        "phase": "extracting",
        "host": f"node{number}",
        "updated_seconds": time.time(),
        "samples": SAMPLES,
        "complete_now": number,
        "tokens_now": TOKENS * number,
        "tokens_pending": SAMPLES * TOKENS,
        "tokens_per_second_1min": 2.0,
        "tokens_per_second_15min": 1.0,
        "bytes_per_second_1min": 1e6,
        "in_flight": 3,
    }
    return RunStatus(**given | changes)


def test_workers_are_listed_and_added_up_and_those_that_have_ended_do_not_count(
    place: Path,
) -> None:
    store = make_store(place / "s.zarr", [TOKENS] * SAMPLES)
    commit_block(store, 0, store.layout.block(0).samples)
    store.runs_path.mkdir()
    for number in range(1, WORKERS):
        copy = store.runs_path / f"{number:012x}.status.json"
        behind = time.time() - 1000 * number  # that host's clock; the copy's age is the file's
        copy.write_text(of_worker(number, updated_seconds=behind).model_dump_json())
    for number in range(20, 20 + 2 * SHOWN_COPIES):
        copy = store.runs_path / f"{number:012x}.status.json"
        copy.write_text(of_worker(number, exit_code=0, phase="ended").model_dump_json())
    pages = RunPages.create(run_directory(), str(store.path))
    try:
        pages.status.write(of_worker(0, phase="waiting for other workers", store=str(store.path)))
        report = StatusReader(store.path).read()
        result = CliRunner().invoke(app, ["status", str(store.path)])
    finally:
        pages.remove()

    complete = len(store.layout.block(0).samples)
    assert report.total is not None
    assert report.total.model_dump() == {
        "runs": WORKERS,
        "complete_now": sum(range(WORKERS)),
        "tokens_now": TOKENS * sum(range(WORKERS)),
        "in_flight": 3 * WORKERS,
        "tokens_per_second_1min": 2.0 * WORKERS,
        "tokens_per_second_15min": 1.0 * WORKERS,
        "bytes_per_second_1min": 1e6 * WORKERS,
        "eta_seconds": (SAMPLES - complete) * TOKENS / WORKERS,
    }
    assert len(report.runs) == WORKERS + SHOWN_COPIES
    assert {run.worker for run in report.runs[:WORKERS]} == {f"{n}/9" for n in range(WORKERS)}
    assert all(run.eta_seconds is None for run in report.runs)
    lines = result.stdout.splitlines()
    assert f"  9 runs at work: {sum(range(WORKERS))} samples by them, 18 tokens/s over 1 min" in (
        result.stdout
    )
    for number in range(1, WORKERS):
        (line,) = [line for line in lines if line.startswith(f"{number}/9 ")]
        assert f"node{number} " in line
        assert " extracting " in line
    assert any(line.startswith("0/9 ") and "waiting for other workers" in line for line in lines)
    assert "worker 0/9, 000000000000 on node0" in result.stdout
    assert "worker 1/9, " not in result.stdout  # its line says enough

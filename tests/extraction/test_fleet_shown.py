"""What people and programs see of a run's servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

import hsstore.cli  # noqa: F401  # registers the commands
from extraction.metrics import RunCollector, Vitals
from extraction.progress import PlainDisplay
from extraction.status import RunStatus, ServerState, StatusPage, run_directory
from hsstore.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UP = ServerState(url="http://a", spool="/s/a", state="up", in_flight=3, in_flight_cap=32, tokens=9)
PARKED = ServerState(url="http://b", spool="/s/b", state="parked", message="connection reset")
LEAVING = ServerState(url="http://c", spool="/s/c", state="leaving")
STATUS = RunStatus(
    run="r", phase="extracting", samples=9, server="http://a", servers=(UP, PARKED, LEAVING)
)


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Path]:
    """Give a store that a run of this process says it works on."""
    store = tmp_path / "s.zarr"
    page = StatusPage.create(run_directory(), str(store))
    try:
        page.write(STATUS.model_copy(update={"store": str(store)}))
        yield store
    finally:
        page.remove()


def test_the_command_shows_each_with_its_state(shown: Path) -> None:
    text = CliRunner().invoke(app, ["status", str(shown)]).output
    document = json.loads(CliRunner().invoke(app, ["status", str(shown), "--json"]).output)

    assert "http://a, up, 3 of 32 in flight, 9 tokens" in text
    assert "http://b, parked, 0 of 0 in flight, 0 tokens: connection reset" in text
    assert [one["state"] for one in document["runs"][0]["servers"]] == ["up", "parked", "leaving"]


def test_the_progress_counts_those_that_are_asked(capsys: pytest.CaptureFixture[str]) -> None:
    PlainDisplay().show(STATUS)
    PlainDisplay().show(STATUS.model_copy(update={"servers": (UP,)}))

    several, alone = capsys.readouterr().err.splitlines()
    assert several.endswith("  servers 1/2")
    assert "servers" not in alone


def test_the_metrics_have_each_by_its_label() -> None:
    registry = CollectorRegistry()
    registry.register(RunCollector(lambda: Vitals(STATUS, None, 0.0, 0, 0)))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"hsstore_server_{name}", labels)

    assert value("state", server="http://b", state="parked") == 1
    assert value("state", server="http://b", state="up") == 0
    assert value("requests_in_flight", server="http://a") == 3
    assert value("tokens_asked_total", server="http://a") == 9

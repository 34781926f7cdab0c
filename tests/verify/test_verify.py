"""`hsstore verify` as its users call it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest

from hsstore.report import DOCUMENTS
from tests.cli.test_cli import run
from tests.verify.test_completion import set_value

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "asked", ["0", "-3", "0%", "101%", "5 %%", "many", "nan", "nan%", "1.5", ""]
)
def test_a_share_that_is_none_is_wrong_input(healthy: Path, asked: str) -> None:
    result = run("verify", healthy, "--sample", asked)

    assert result.exit_code == 2
    assert f"--sample {asked}: neither a share such as 5% nor a number" in result.stderr


def test_a_quick_look_says_what_it_has_looked_at(healthy: Path) -> None:
    result = run("verify", healthy, "--sample", "25%", "--seed", "7")

    assert result.exit_code == 0
    assert "ok: 3 of 13 samples checked (25% by seed 7)" in result.stdout


def test_a_repair_says_what_it_has_done_and_the_next_verify_is_content(damaged: Path) -> None:
    set_value(damaged, "digest", 7, 1, fix_crc=True)

    repaired = run("verify", damaged, "--repair")
    again = run("verify", damaged, "--repair", "--json")

    assert repaired.exit_code == 1
    assert "digest: --repair clears the bits; then run hsstore extract" in repaired.stdout
    assert "repaired: 1 samples are pending now, and nothing else was changed" in repaired.stdout
    assert again.exit_code == 0
    report = json.loads(again.stdout)
    jsonschema.validate(report, DOCUMENTS["verify"].model_json_schema(mode="serialization"))  # type: ignore[no-untyped-call]
    assert report["repair"] == {"cleared": 0, "files": 0, "left": 0, "refused": ""}


def test_processes_do_what_threads_do(healthy: Path) -> None:
    result = run("verify", healthy, "--processes", "1", "--workers", "2")

    assert result.exit_code == 0
    assert result.stdout == run("verify", healthy).stdout


def test_a_scheduler_that_is_not_there_is_wrong_input(
    healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsstore.tasks.CONNECT_SECONDS", 0.5)

    result = run("verify", healthy, "--scheduler", "tcp://127.0.0.1:1")

    assert result.exit_code == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in result.stderr


def test_an_html_report_is_written_beside_the_text(healthy: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"

    result = run("verify", healthy, "--html", file)

    assert result.exit_code == 0
    assert "Coverage" in file.read_text()
    assert run("verify", healthy, "--html", tmp_path / "a" / "b.html").exit_code == 2

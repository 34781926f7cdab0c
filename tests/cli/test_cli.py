"""The command line: output, exit codes, and how fast it says what it can do."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import jsonschema
import pytest
from typer.testing import CliRunner

from hsstore.cli.app import app
from hsstore.errors import HsstoreError, InterruptedRunError, OutputError, RefusedError
from hsstore.report import DOCUMENTS

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


def run(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    import hsstore.cli  # noqa: F401, PLC0415  # registers the commands

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_info_sums_up_the_store_for_programs(healthy: Path) -> None:
    result = run("info", healthy, "--json")

    info = json.loads(result.stdout)
    jsonschema.validate(info, DOCUMENTS["info"].model_json_schema(mode="serialization"))  # type: ignore[no-untyped-call]
    files = [path for path in healthy.rglob("*") if path.is_file()]
    assert result.exit_code == 0
    assert (info["samples"], info["complete"], info["failed"], info["pending"]) == (13, 10, 1, 2)
    assert info["failed_by_reason"] == {"bad-data": 1}
    assert (info["tokens"], info["tokens_complete"]) == (63, 55)
    assert info["bytes_raw"] == 55 * 3 * 16 * 2
    assert info["files"] == len(files)
    assert info["bytes_stored"] == sum(path.stat().st_size for path in files)
    assert info["ratio"] == info["bytes_raw"] / info["bytes_stored"]
    assert (info["slots"], info["hidden"], info["dtype"]) == (3, 16, "bfloat16")
    assert (info["layers"], info["final"], info["model"]) == ([0, 3], "post-norm", "test/model")
    assert info["codec"]["name"] == "blosc"
    assert [record["run"] for record in info["runs"]] == ["r1"]


def test_info_is_readable_for_people(healthy: Path) -> None:
    result = run("info", healthy)

    assert result.exit_code == 0
    assert "10 of 13 complete" in result.stdout
    assert "1 (bad-data 1)" in result.stdout
    assert "0, 3; final state post-norm" in result.stdout


def test_verify_ends_with_0_on_a_healthy_store(healthy: Path) -> None:
    result = run("verify", healthy)

    assert result.exit_code == 0
    assert result.stdout == ("ok: 10 of 13 samples checked (0.00 GB), 2 pending, 1 failed\n")


def test_verify_ends_with_1_and_names_the_samples(damaged: Path) -> None:
    result = run("verify", damaged)

    assert result.exit_code == 1
    assert "payload-without-bit" in result.stdout
    assert "chat/7/ä" in result.stdout
    assert result.stdout.endswith("2 bad: 9 of 13 samples checked (0.00 GB), 3 pending, 1 failed\n")


def test_verify_prints_one_document_for_programs(damaged: Path) -> None:
    result = run("verify", damaged, "--json", "--workers", "1")

    report = json.loads(result.stdout)
    jsonschema.validate(report, DOCUMENTS["verify"].model_json_schema(mode="serialization"))  # type: ignore[no-untyped-call]
    assert result.exit_code == 1
    assert not report["ok"]
    assert report["checked"] == 9
    assert [(bad["sample"], bad["sample_id"], bad["kind"]) for bad in report["bad"]] == [
        (2, "chat/2/ä", "payload-without-bit"),
        (7, "chat/7/ä", "digest"),
    ]


def test_verify_shows_people_a_part_of_many_findings(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hsstore.cli.verify.MAX_LINES", 1)

    result = run("verify", damaged)

    assert "and 1 more: --json shows all of them" in result.stdout


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_place_without_a_store_is_wrong_input(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "nothing", "--json")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("hsstore: ")
    assert "no hsstore store is there" in result.stderr


@pytest.mark.parametrize("arguments", [["info"], ["verify", "a", "--nonsense"], ["nonsense"]])
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (RefusedError("another model"), 3, "hsstore: another model\n"),
        (OutputError("full"), 74, "hsstore: full\n"),
        (InterruptedRunError("stopped"), 75, "hsstore: stopped\n"),
        (KeyboardInterrupt(), 75, "hsstore: interrupted\n"),
    ],
)
def test_errors_become_exit_codes_in_one_place(
    monkeypatch: pytest.MonkeyPatch,
    healthy: Path,
    error: HsstoreError | KeyboardInterrupt,
    exit_code: int,
    message: str,
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("hsstore.info.store_info", fail)

    result = run("info", healthy)

    assert (result.exit_code, result.stderr) == (exit_code, message)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, healthy: Path) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("hsstore.info.store_info", fail)

    assert isinstance(run("info", healthy).exception, ZeroDivisionError)


def test_the_module_runs_as_the_command_does() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "hsstore", "--version"], capture_output=True, text=True, check=True
    )

    assert result.stdout == f"hsstore {version('hsstore')}\n"


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys, atexit; sys.argv = ['hsstore', '--help'];"
        "atexit.register(lambda: print('HEAVY', *({'numpy', 'zarr', 'dask', 'torch', 'pydantic'}"
        " & set(sys.modules)), sep=','));"
        "from hsstore.cli import main; main()"
    )

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "verify" in result.stdout
    assert result.stdout.endswith("HEAVY\n")

"""`hsstore plan` on tokenised data and a bare config.json: no tokenizer, no weights."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

KIMI = {"text_config": {"hidden_size": 7168, "num_hidden_layers": 61}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Give the directory of a model of Kimi-K2.5's size."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(KIMI))
    return tmp_path / "model"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Give ten samples of 100 tokens."""
    record = {"input_ids": [5] * 100, "loss_mask": [1] * 100}
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(record | {"id": str(i)}) + "\n" for i in range(10)))
    return path


def plan(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "hsstore", "plan", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_plan_says_what_a_run_would_take(data: Path, model: Path) -> None:
    result = plan("--data", data, "--model", model, "--tokens-per-second", 1)

    assert result.returncode == 0, result.stderr
    assert "10 samples, 1,000 tokens: 0.057 GB raw" in result.stdout  # 57,344 bytes a token
    assert "0.28 hours" in result.stdout


def test_what_cannot_fit_is_refused_with_the_bytes_needed(data: Path, model: Path) -> None:
    result = plan("--data", data, "--model", model, "--memory-gb", 0.001)

    assert result.returncode == 3
    assert "10 samples (the first is sample 0) need up to 5,7" in result.stderr


def test_a_directory_that_is_no_checkpoint_is_wrong_input(data: Path, tmp_path: Path) -> None:
    result = plan("--data", data, "--model", tmp_path)

    assert result.returncode == 2
    assert f"{tmp_path} is not a checkpoint" in result.stderr


def test_a_config_without_sizes_is_named(data: Path, model: Path) -> None:
    (model / "config.json").write_text("{}")

    result = plan("--data", data, "--model", model)

    assert result.returncode == 2
    assert "config.json: no hidden_size and num_hidden_layers" in result.stderr

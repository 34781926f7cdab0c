"""`hsstore doctor` on what is no store, and on one that is damaged."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hsstore.testing.stores import make_store
from tests.watchdog.runs import ENVIRONMENT

if TYPE_CHECKING:
    from pathlib import Path


def doctor(path: Path) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command: list[str | Path] = [sys.executable, "-m", "hsstore", "doctor", path]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none/s.zarr", "does not exist, and no run is making it"),
        ("folder", "is no store of ours: it has no zarr.json, and no run is known"),
        ("file", "is no store of ours: it has no zarr.json, and no run is known"),
    ],
)
def test_a_wrong_path_is_wrong_input_and_no_verdict(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()

    ended = doctor(tmp_path / name)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"hsstore: {tmp_path / name} {text}\n"


def test_a_damaged_store_is_not_blamed_on_the_server(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", [3, 9, 40])
    (store.path / "zarr.json").write_text("not json")

    ended = doctor(store.path)

    assert ended.returncode == 29, ended
    assert "zarr.json is damaged" in ended.stdout
    assert "restore what is damaged from a copy of the store" in ended.stdout

"""docs/training.md tells the truth: each of its programs runs as it stands."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hsstore.store import Store

DOCUMENT = Path(__file__).parents[2] / "docs" / "training.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
WITH_PROCESSES = [number for number, text in enumerate(PROGRAMS) if "Cluster(" in text]
"""Processes of a cluster import the program that started them."""
ALONE = sorted(set(range(len(PROGRAMS))) - set(WITH_PROCESSES))


@pytest.fixture
def program(
    many: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """Write a program of the document beside the store that it names, and go there."""
    (tmp_path / "states.zarr").symlink_to(many.path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "program.py"
    path.write_text(PROGRAMS[request.param])
    return path


@pytest.mark.parametrize("program", ALONE, indirect=True)
def test_a_program_of_the_document_runs(program: Path) -> None:
    runpy.run_path(str(program), run_name="__main__")


@pytest.mark.parametrize("program", WITH_PROCESSES, indirect=True)
def test_a_program_of_the_document_that_starts_processes_runs(program: Path) -> None:
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr


def test_the_programs_cover_every_way() -> None:
    together = "\n".join(PROGRAMS)
    for name in (
        "StreamLoader",
        "load_state_dict",
        "Eagle3Dataset",
        "draft_vocabulary",
        "dask_batches",
    ):
        assert name in together

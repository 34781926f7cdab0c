"""docs/training.md tells the truth: each of its programs runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hsstore.store import Store

DOCUMENT = Path(__file__).parents[2] / "docs" / "training.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_document_runs(many: Store, tmp_path: Path, number: int) -> None:
    (tmp_path / "states.zarr").symlink_to(many.path)
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[number])

    run = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False
    )

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

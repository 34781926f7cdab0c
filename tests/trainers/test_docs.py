"""docs/trainers.md tells the truth: what it shows runs, in the order in which it is shown.

Only sizes are others, those of the tiny model, and what has to be off on a CPU is off.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hsstore.integrations import prepare
from tests.trainers.running import run

if TYPE_CHECKING:
    from hsstore.store import Store

DOCUMENT = Path(__file__).parents[2] / "docs/trainers.md"
CHANGED = {
    '"eagle_offline": True': '"eagle_offline": True, "eagle_use_torch_compile": False',
    "8192": "128",
    "2048": "64",
    "[1, 14, 26]": "[1, 3, 4]",
    "2 15 27": "2 4 5",
    "learning_rate=1e-4,": 'learning_rate=1e-4,\n        use_cpu=True,\n        save_strategy="no",',
}
ON_THE_CPU = "--draft-attn-impl sdpa --loss-implementation eager --num-workers 0 --max-steps 2 --mask-token-id 0"


def blocks(section: str) -> list[tuple[str, str]]:
    """Return the language and the text of the blocks of a section."""
    text = DOCUMENT.read_text()
    for shown, tiny in CHANGED.items():
        assert shown in text
        text = text.replace(shown, tiny)
    part = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```", part, re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[list[str]]:
    """Return the commands of a block, without the interpreter's name."""
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines]


def execute(section: str) -> None:
    """Do what a section shows, in this directory."""
    for language, block in blocks(section):
        if language == "yaml":
            Path("run.yaml").write_text(block)
        elif language == "python":
            exec(compile(block, f"{DOCUMENT}: {section}", "exec"), {"__name__": "__main__"})
        else:
            for command in commands(block):
                start(command)


def start(command: list[str]) -> None:
    """Run ``-m MODULE ARGUMENTS``."""
    if command[1] == prepare.__name__:
        prepare.main(command[2:])
        return
    extra = shlex.split(ON_THE_CPU) if "train" in command else []
    done = run(*command, *extra)
    assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def _files(
    stores: dict[str, Store], room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("states.zarr").symlink_to(stores["post-norm"].path)
    Path("target").symlink_to(room / "target")


def test_specforge() -> None:
    execute("What a trainer needs beside the samples")
    execute("SpecForge")
    assert list(Path("specforge-out").iterdir())


def test_speculators() -> None:
    execute("speculators")
    assert Path("speculators-out/0/model.safetensors").exists()


def test_modelopt(capsys: pytest.CaptureFixture[str]) -> None:
    execute("ModelOpt")
    assert "'loss'" in capsys.readouterr().out


def test_automodel(capsys: pytest.CaptureFixture[str]) -> None:
    execute("NeMo Automodel")
    assert len(capsys.readouterr().out.splitlines()) == 5

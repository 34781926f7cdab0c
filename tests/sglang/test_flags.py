"""Every flag that `hsstore serve` gives, refuses or warns about is one of this SGLang."""

from __future__ import annotations

import subprocess
from pathlib import Path

from extraction.engines.sglang import arguments, command
from extraction.engines.sglang.checkpoint import Checkpoint
from extraction.engines.sglang.options import SglangOptions
from tests.sglang.serving import PYTHON

LIST_FLAGS = """
from hsstore_test_platform import make_torchvision_importable
make_torchvision_importable()
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
for action in parser._actions:
    print(*action.option_strings, sep="\\n")
"""


def test_every_flag_is_known_and_none_is_taken_for_another() -> None:
    output = subprocess.run(
        [PYTHON, "-c", LIST_FLAGS], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    known = set(output.split())
    named = _of_rules() | _of_commands()

    assert named - known == set()
    beginnings = {
        flag
        for flag in known
        for longer in named
        if longer != flag and arguments._means(flag, [longer])
    }
    assert beginnings == {"--model", "--speculative-draft-model"}  # aliases of the longer ones


def _of_rules() -> set[str]:
    rules = (*arguments._REFUSED, *arguments._WARNED, arguments._FUSION)
    others = {"--tp-size", "--tensor-parallel-size", "--ssl-certfile"}
    return others.union(command._ABOUT_TEXT, *(rule.flags for rule in rules))


def _of_commands() -> set[str]:
    found: set[str] = set()
    for accelerator in (True, False):
        made = command.launch(
            SglangOptions(Path("model"), PYTHON, arguments=("--tp-size", "8")),
            Checkpoint(Path("model"), 61, "float32"),
            command.Host({}, accelerator=accelerator, cores=(0, 1)),
            port=1,
            spool=Path("spool"),
        )
        found |= {word for word in made.argv if word.startswith("--")}
    return found

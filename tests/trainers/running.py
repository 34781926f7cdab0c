"""Trainers as their users start them, each in a process of its own, and what they print of their steps."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CPU = Path(__file__).with_name("cpu.py")
TIMEOUT_SECONDS = 300.0
Steps = list[dict[str, Any]]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``python -m MODULE ...`` with what the CPU needs."""
    command = [sys.executable, str(CPU), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=TIMEOUT_SECONDS,
    )


def steps(*arguments: str | Path) -> Steps:
    """Run a trainer to its end; return what it says of each step, but for how long that took."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    marked = (line.partition(": ") for line in done.stdout.splitlines() if line.startswith("step "))
    found = [ast.literal_eval(said) for _, _, said in marked]
    return [
        {name: value for name, value in step.items() if not name.startswith(("perf/", "profile"))}
        for step in found
    ]

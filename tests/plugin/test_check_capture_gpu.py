"""The script for machines with a GPU, on one without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOL = Path(__file__).parents[2] / "tools/check_capture_gpu.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_it_says_that_nothing_was_checked() -> None:
    command = [sys.executable, str(TOOL)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)

    assert result.returncode == 2
    assert result.stdout == "no CUDA device: nothing was checked\n"

"""From prompts to a store: the target's own answers, and its states over them, by hsstore's commands."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.demo import is_complete
from tools.eagle3.prompts import write_prompts
from tools.serving import hsstore, serving

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is made."""

    prompts: int
    held_out: int
    """Of the prompts."""
    new_tokens: int
    """Of an answer, at most."""


def make_store(work: Path, model: Path, amount: Amount, threads: int) -> Path:
    """Make the store, or go on with it; return its path."""
    prompts, answers, store = (work / n for n in ("prompts.jsonl", "answers.jsonl", "states.zarr"))
    work.mkdir(parents=True, exist_ok=True)
    if not (model / "config.json").exists():
        subprocess.run([sys.executable, ROOT / "tools/convert_smollm2.py", model], check=True)
    if is_complete(store):
        print(f"{store} is complete already: neither asked nor extracted")
        return store
    write_prompts(prompts, amount.prompts, amount.held_out)
    with serving(model, work / "server.log", "--threads", str(threads)) as (url, spool):
        source = ("--server", url, "--model", model)
        hsstore("regenerate", prompts, answers, *source, "--max-new-tokens", amount.new_tokens)
        hsstore("extract", store, *source, "--spool", spool, "--data", answers)
    return store

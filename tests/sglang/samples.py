"""Datasets: samples that share a long beginning, so that a prefix cache would answer for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.sglang.models import VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Sequence

CHATS = Path(__file__).parents[1] / "data/mtbench_chats.jsonl"
SHARED_TOKENS = 70
KEEP_ALL = ("--min-loss-tokens", "0")
"""Also conversations that are cut off before an answer of theirs begins."""
_SYSTEM = (
    "You are a careful assistant. Answer in plain words, say what you do not know, and keep to "
    "what was asked. Show your work where numbers are involved, and name the units. When the "
    "question has several parts, answer them in their order. Never invent a source, a name or a "
    "date; when you are not sure, say so and explain how one could find out. Be brief and polite."
)


def write_chats(path: Path, samples: int) -> Path:
    """Write real conversations, each behind the same long system prompt."""
    system = {"role": "system", "content": _SYSTEM}
    with path.open("w") as file:
        for line in CHATS.read_text().splitlines()[:samples]:
            chat = json.loads(line)
            chat["messages"].insert(0, system)
            file.write(json.dumps(chat) + "\n")
    return path


def write_samples(path: Path, lengths: Sequence[int], *, seed: int = 0) -> Path:
    """Write tokenised samples; every second one begins with the same 70 tokens, if it is so long."""
    generator = np.random.default_rng(seed)
    shared = generator.integers(3, VOCABULARY, SHARED_TOKENS)
    with path.open("w") as file:
        for index, length in enumerate(lengths):
            tokens = generator.integers(3, VOCABULARY, length)
            if index % 2:
                tokens[:SHARED_TOKENS] = shared[:length]
            record = {"id": f"sample-{index}", "input_ids": tokens.tolist()}
            file.write(json.dumps(record | {"loss_mask": [1] * length}) + "\n")
    return path


def draw_lengths(samples: int, longest: int, *, seed: int = 0) -> list[int]:
    """Choose lengths of 1 to `longest` tokens; half of them are longer than half of it."""
    lengths: list[int] = np.random.default_rng(seed).integers(1, longest + 1, samples).tolist()
    return lengths

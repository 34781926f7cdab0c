"""Filters, counts, and the committed demo conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from extraction.dataset import DatasetOptions, load_dataset, tokenizer_hash
from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

DEMO = Path(__file__).parents[1] / "data/mtbench_chats.jsonl"


def tokens(length: int, supervised: int) -> dict[str, Any]:
    """Make a record whose last `supervised` tokens are supervised."""
    mask = [0] * (length - supervised) + [1] * supervised
    return {"input_ids": list(range(length)), "loss_mask": mask}


def test_too_long_samples_are_truncated_and_counted(load: Callable[..., Any]) -> None:
    dataset, report = load([tokens(9, 8), tokens(5, 5)], max_tokens=5)

    assert dataset.length.tolist() == [5, 5]
    assert dataset.loss_mask.tolist() == [0, 1, 1, 1, 1] + [1] * 5
    assert report.summary() == "2 read, 2 kept (1 truncated)"


def test_too_long_samples_are_skipped_and_counted_if_asked(load: Callable[..., Any]) -> None:
    dataset, report = load([tokens(9, 8), tokens(5, 5)], max_tokens=5, too_long="skip")

    assert dataset.length.tolist() == [5]
    assert report.drops == {"too long": 1}
    assert report.examples["too long"][0].endswith("line 1: 9 tokens, at most 5")


def test_samples_with_too_few_supervised_tokens_are_dropped(load: Callable[..., Any]) -> None:
    records = [tokens(4, 0), tokens(9, 2), tokens(4, 1), tokens(4, 2)]

    _, by_default = load(records, max_tokens=8)
    _, stricter = load(records, min_loss_tokens=2)

    assert by_default.drops == {"too few loss tokens": 1}
    assert by_default.truncated == 1
    assert stricter.drops == {"too few loss tokens": 2}


def test_a_conversation_without_an_answer_is_dropped_by_default(
    load: Callable[..., Any], chatml_dir: Path
) -> None:
    _, report = load([tokens(4, 2), {"messages": [{"role": "user", "content": "?"}]}], chatml_dir)

    assert report.drops == {"too few loss tokens": 1}


def test_the_limit_counts_samples_that_are_kept(load: Callable[..., Any]) -> None:
    dataset, report = load([tokens(4, 0), tokens(4, 1), tokens(4, 2), tokens(4, 3)], limit=2)

    assert len(dataset) == report.kept == 2
    assert report.read == 3


def test_bad_records_stop_the_load_unless_they_may_be_skipped(load: Callable[..., Any]) -> None:
    records = [tokens(4, 2), {"text": 1}, tokens(3, 2), {"messages": []}]

    with pytest.raises(InputError, match=r"line 2: field 'text'"):
        load(records)
    dataset, report = load(records, skip_bad=True)

    assert dataset.length.tolist() == [4, 3]
    assert report.summary() == "4 read, 2 kept; dropped: 2 bad input"
    assert len(report.examples["bad input"]) == 2


def test_nothing_kept_is_an_error_that_says_why(load: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"no sample is left: 1 read, 0 kept; dropped: 1 too few"):
        load([tokens(4, 0)])


def test_progress_is_told_after_every_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(tokens(4, i % 2)) + "\n" for i in range(5)))
    seen: list[int] = []

    load_dataset([path], None, DatasetOptions(), seen.append)

    assert seen == [1, 2, 3, 4, 5]


def test_the_tokenizer_hash_changes_with_the_template_and_not_with_the_weights(
    chatml_dir: Path, copy_dir: Callable[[Path], Path]
) -> None:
    copy = copy_dir(chatml_dir)
    before = tokenizer_hash(copy)

    (copy / "model.safetensors").write_bytes(b"weights")
    with_weights = tokenizer_hash(copy)
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    with_template = tokenizer_hash(copy)

    assert before == with_weights == tokenizer_hash(chatml_dir)
    assert with_template != before
    assert len(before) == 32


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer in it"):
        tokenizer_hash(tmp_path)
    with pytest.raises(InputError, match="cannot be loaded"):
        load_dataset([DEMO], tmp_path, DatasetOptions())
    with pytest.raises(InputError, match="not a directory"):
        load_dataset([DEMO], tmp_path / "gone", DatasetOptions())


def test_conversations_need_a_chat_template(
    load: Callable[..., Any], make_tokenizer: Callable[[str], Path]
) -> None:
    with pytest.raises(InputError, match="the tokenizer has no chat template"):
        load([{"prompt": "a", "response": "b"}], make_tokenizer(""))


def test_the_demo_conversations_are_all_kept(chatml_dir: Path) -> None:
    dataset, report = load_dataset([DEMO], chatml_dir, DatasetOptions())

    assert report.kept == report.read == 80
    assert not report.drops
    assert 30_000 < dataset.tokens < 60_000
    assert 0.5 < dataset.loss_mask.mean() < 0.95

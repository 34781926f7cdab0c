"""What a record may hold, and how wrong ones are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hsstore.dataset import TokenizedDataset

TOKENS: dict[str, Any] = {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello."}


def ids_of(dataset: TokenizedDataset) -> list[str]:
    return [bytes(row).rstrip(b"\0").decode() for row in dataset.sample_id]


def test_tokenised_records_are_taken_as_they_are(load: Callable[..., Any]) -> None:
    record = {**TOKENS, "id": "a", "split": "test", "metadata": {"k": [1, None]}, "text": "kept"}

    dataset, report = load([record])

    assert dataset.input_ids.tolist() == [5, 6, 7]
    assert dataset.loss_mask.tolist() == [0, 1, 1]
    assert ids_of(dataset) == ["a"]
    assert dataset.split_names == ("test",)
    assert bytes(dataset.metadata) == b'{"k":[1,null]}'
    assert report.summary() == "1 read, 1 kept"


def test_sharegpt_and_openai_conversations_give_the_same_tokens(
    load: Callable[..., Any], chatml_dir: Path
) -> None:
    sharegpt = {
        "conversations": [
            {"from": "system", "value": "S"},
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "Hello."},
        ]
    }
    openai = {"messages": [{"role": "system", "content": "S"}, USER, ANSWER]}
    prompted = {"system": "S", "prompt": "Hi", "response": "Hello."}
    parts = {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "S"}]},
            {"role": "user", "content": ["H", {"type": "text", "text": "i"}]},
            ANSWER,
        ]
    }

    dataset, _ = load([sharegpt, openai, prompted, parts], chatml_dir)

    tokens = dataset.input_ids.reshape(4, -1)
    masks = dataset.loss_mask.reshape(4, -1)
    assert (tokens == tokens[0]).all()
    assert (masks == masks[0]).all()


def test_sharegpt_function_calls_become_tool_calls(
    real_template: Callable[[str], Path], supervised: Callable[..., list[str]]
) -> None:
    record = {
        "tools": '[{"type": "function", "function": {"name": "now"}}]',
        "conversations": [
            {"from": "human", "value": "Time?"},
            {"from": "function_call", "value": '{"name": "now", "arguments": {"zone": "CET"}}'},
            {"from": "observation", "value": "12:00"},
            {"from": "gpt", "value": "Noon."},
        ],
    }

    texts = supervised(record, real_template("llama3_1"))

    assert texts == ['{"name": "now", "parameters": {"zone": "CET"}}<|eot_id|>', "Noon.<|eot_id|>"]


def test_all_of_a_text_is_supervised(load: Callable[..., Any], chatml_dir: Path) -> None:
    dataset, _ = load([{"text": "To be, or not to be."}], chatml_dir)

    assert dataset.loss_mask.all()
    assert dataset.tokens > 5


def test_records_without_an_id_are_named_by_file_and_line(load: Callable[..., Any]) -> None:
    dataset, _ = load([TOKENS, {**TOKENS, "uuid": 17}, TOKENS])

    assert ids_of(dataset) == ["data-1", "17", "data-3"]


@pytest.mark.parametrize(
    ("record", "field", "what"),
    [
        ({}, "messages", "a record is one of"),
        ({"messages": [USER], "text": "x"}, "messages + text", "a record is one of"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": "Hi"}, "messages", "a list of messages is expected"),
        ({"messages": ["Hi"]}, "messages[0]", "an object is expected"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role", "'wizard'"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role", "missing"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1].content", "missing"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "text"),
        (
            {"messages": [{"role": "user", "content": ["a", {"type": "image_url"}]}]},
            "messages[0].content[1]",
            "'image_url'",
        ),
        (
            {
                "messages": [
                    {**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
            "not valid JSON",
        ),
        (
            {"messages": [{**ANSWER, "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
            "missing",
        ),
        (
            {"messages": [{**ANSWER, "reasoning_content": 1}]},
            "messages[0].reasoning_content",
            "text",
        ),
        ({"messages": [USER], "tools": "{}"}, "tools", "a list of objects"),
        ({"messages": [USER], "chat_template_kwargs": []}, "chat_template_kwargs", "object"),
        ({"prompt": "Hi", "response": 3}, "response", "text is expected"),
        ({"text": ""}, "text", "empty"),
        ({"input_ids": [1]}, "loss_mask", "missing"),
        ({"input_ids": [], "loss_mask": []}, "input_ids", "non-empty"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "loss_mask", "has 1 entries, input_ids has 2"),
        ({"input_ids": [1, -2], "loss_mask": [1, 1]}, "input_ids[1]", "-2 is not in"),
        ({"input_ids": [1, 2.0], "loss_mask": [1, 1]}, "input_ids[1]", "an integer"),
        ({"input_ids": [1, True], "loss_mask": [1, 1]}, "input_ids[1]", "an integer"),
        ({"input_ids": [2**31], "loss_mask": [1]}, "input_ids[0]", "2147483648 is not in"),
        ({"input_ids": [2**70], "loss_mask": [1]}, "input_ids", "64 bits"),
        ({"input_ids": [1], "loss_mask": [2]}, "loss_mask", "only 0 and 1"),
        ({**TOKENS, "id": ""}, "id", "1 to 255 bytes"),
        ({**TOKENS, "id": [1]}, "id", "text or an integer"),
        ({**TOKENS, "id": "x" * 256}, "id", "1 to 255 bytes"),
        ({**TOKENS, "split": 3}, "split", "a name"),
        ({**TOKENS, "metadata": [1]}, "metadata", "an object"),
        ({**TOKENS, "metadata": "{"}, "metadata", "not valid JSON"),
    ],
)
def test_a_wrong_record_is_named_by_file_line_and_field(
    record: dict[str, Any], field: str, what: str, load: Callable[..., Any]
) -> None:
    with pytest.raises(InputError) as caught:
        load([TOKENS, record])

    message = str(caught.value)
    assert "data.jsonl, line 2: " in message
    assert f"field {field!r}: " in message
    assert what in message


def test_ids_beyond_the_vocabulary_are_wrong(load: Callable[..., Any], chatml_dir: Path) -> None:
    with pytest.raises(InputError, match=r"49152 is not in 0 to 49151 \(the vocabulary\)"):
        load([{"input_ids": [49_152], "loss_mask": [1]}], chatml_dir)


def test_a_duplicate_id_names_both_places(load: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"line 3: field 'id': duplicate 'a', first at .*line 1"):
        load([{**TOKENS, "id": "a"}, TOKENS, {**TOKENS, "id": "a"}])


def test_text_without_a_tokenizer_is_refused(load: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="line 1: text needs a tokenizer"):
        load([{"text": "x"}])

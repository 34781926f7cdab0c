# ruff: noqa: RUF001 - DeepSeek writes its tokens with a full-width bar
"""Loss masks under the chat templates of real models: what is supervised, decoded.

The templates are in tests/data/templates (README.md there says from which packages); ChatML is
SmolLM2's own. Expectations are written out by hand from what each template renders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "It is 4."},
        {"role": "user", "content": "And times 3?\n"},
        {"role": "assistant", "content": "12, \u00fcber\u00adall \U0001f642"},
    ]
}
ANSWERS = ["It is 4.", "12, \u00fcber\u00adall \U0001f642"]

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
CALL = {
    "id": "functions.get_weather:0",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}
TOOL_CHAT: dict[str, Any] = {
    "tools": [WEATHER],
    "messages": [
        {"role": "user", "content": "Weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "18 degrees"},
        {"role": "assistant", "content": "It has 18 degrees."},
    ],
}


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("llama3", "<|eot_id|>"),
        ("llama3_1", "<|eot_id|>"),
        ("llama3_training", "<|eot_id|>"),
        ("deepseek_v3_1", "<｜end▁of▁sentence｜>"),
        ("kimi_k2", "<|im_end|>"),
    ],
)
def test_every_answer_is_supervised_with_its_end_token(
    template: str,
    end: str,
    real_template: Callable[[str], Path],
    supervised: Callable[..., list[str]],
) -> None:
    texts = supervised(CHAT, real_template(template))

    assert texts == [answer + end for answer in ANSWERS]


def test_chatml_answers_are_supervised_with_their_end_token(
    chatml_dir: Path, supervised: Callable[..., list[str]]
) -> None:
    texts = supervised(CHAT, chatml_dir)

    assert texts == [f"{answer}<|im_end|>" for answer in ANSWERS]


def test_the_default_system_prompt_is_not_supervised(
    chatml_dir: Path, load: Callable[..., Any], supervised: Callable[..., list[str]]
) -> None:
    record = {"messages": CHAT["messages"][1:3]}

    texts = supervised(record, chatml_dir)

    assert texts == ["It is 4.<|im_end|>"]


@pytest.mark.parametrize(
    "template", ["llama3", "llama3_training", "deepseek_v3_1", "kimi_k2", "qwen3"]
)
def test_train_on_last_supervises_the_last_answer_only(
    template: str, real_template: Callable[[str], Path], supervised: Callable[..., list[str]]
) -> None:
    texts = supervised(CHAT, real_template(template), train_on="last")

    assert len(texts) == 1
    assert ANSWERS[1] in texts[0]
    assert ANSWERS[0] not in texts[0]


def test_kimi_k2_5_answers_without_thinking_close_it_first(
    real_template: Callable[[str], Path], supervised: Callable[..., list[str]]
) -> None:
    directory = real_template("kimi_k2_5")

    prompted_to_think = supervised(CHAT, directory)
    not_prompted = supervised(CHAT, directory, chat_template_kwargs={"thinking": False})

    assert prompted_to_think == [f"</think>{answer}<|im_end|>" for answer in ANSWERS]
    assert not_prompted == [f"{answer}<|im_end|>" for answer in ANSWERS]


def test_llama_3_1_tool_calls_are_supervised_and_results_are_not(
    real_template: Callable[[str], Path], supervised: Callable[..., list[str]]
) -> None:
    texts = supervised(TOOL_CHAT, real_template("llama3_1"))

    assert texts == [
        '{"name": "get_weather", "parameters": {"city": "Paris"}}<|eot_id|>',
        "It has 18 degrees.<|eot_id|>",
    ]


def test_kimi_k2_tool_calls_are_supervised_and_results_are_not(
    real_template: Callable[[str], Path], supervised: Callable[..., list[str]]
) -> None:
    texts = supervised(TOOL_CHAT, real_template("kimi_k2"))

    assert texts == [
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
            "<|tool_calls_section_end|><|im_end|>"
        ),
        "It has 18 degrees.<|im_end|>",
    ]


def test_deepseek_v3_1_tool_calls_are_supervised_and_results_are_not(
    real_template: Callable[[str], Path], supervised: Callable[..., list[str]]
) -> None:
    texts = supervised(TOOL_CHAT, real_template("deepseek_v3_1"))

    assert texts == [
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
            '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'
        ),
        "It has 18 degrees.<｜end▁of▁sentence｜>",
    ]


def test_a_chain_of_deepseek_v3_1_tool_calls_is_supervised_call_by_call(
    real_template: Callable[[str], Path], supervised: Callable[..., list[str]]
) -> None:
    user, call, result, answer = TOOL_CHAT["messages"]
    record = {"messages": [user, call, result, call, result, answer]}

    texts = supervised(record, real_template("deepseek_v3_1"))

    assert len(texts) == 3
    assert all(text.startswith("<｜tool▁calls▁begin｜>") for text in texts[:2])
    assert texts[2] == "It has 18 degrees.<｜end▁of▁sentence｜>"


def test_qwen_3_thinking_before_a_tool_call_is_supervised_with_it(
    real_template: Callable[[str], Path], supervised: Callable[..., list[str]]
) -> None:
    user, call, result, answer = TOOL_CHAT["messages"]
    thinking = {**call, "reasoning_content": "I need the weather."}
    final = {**answer, "reasoning_content": "Now I know."}

    texts = supervised({"messages": [user, thinking, result, final]}, real_template("qwen3"))

    assert texts == [
        (
            "<think>\nI need the weather.\n</think>\n\n<tool_call>\n"
            '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
        ),
        "<think>\nNow I know.\n</think>\n\nIt has 18 degrees.<|im_end|>",
    ]


def test_qwen_3_drops_earlier_thinking_so_all_turns_cannot_be_proven(
    real_template: Callable[[str], Path], refusal: Callable[..., dict[str, list[str]]]
) -> None:
    reasons = refusal(CHAT, real_template("qwen3"))

    assert list(reasons) == ["unproven mask"]
    assert (
        "data.jsonl, line 2: message 3 (assistant): it renders differently"
        in (reasons["unproven mask"][0])
    )


def test_chat_template_kwargs_reach_the_template(
    real_template: Callable[[str], Path], supervised: Callable[..., list[str]]
) -> None:
    directory = real_template("qwen3")
    record = {"messages": CHAT["messages"][:3]}

    thinking = supervised(record, directory)
    without = supervised(record, directory, chat_template_kwargs={"enable_thinking": False})
    own = supervised({**record, "chat_template_kwargs": {"enable_thinking": False}}, directory)

    assert thinking == ["<think>\n\n</think>\n\nIt is 4.<|im_end|>"]
    assert without == own == ["It is 4.<|im_end|>"]


def test_deepseek_v3_prompts_for_thinking_that_it_does_not_render_and_is_refused(
    real_template: Callable[[str], Path], refusal: Callable[..., dict[str, list[str]]]
) -> None:
    reasons = refusal(CHAT, real_template("deepseek_v3"))

    assert "the generation prompt is not how" in reasons["unproven mask"][0]


def test_generation_markers_that_take_in_the_header_are_refused(
    real_template: Callable[[str], Path], refusal: Callable[..., dict[str, list[str]]]
) -> None:
    reasons = refusal(CHAT, real_template("deepseek_v3_training"))

    assert "marks its header as generated" in reasons["unproven mask"][0]

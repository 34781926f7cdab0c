"""Render conversations through the model's chat template, and prove where its turns are.

A chat template gives text, not who said what. Few mark the assistant's part
(``{% generation %}``), not all of those rightly, and some render a turn differently once others follow: they drop earlier
thinking, or end the last turn with another token. So for each supervised turn two more renderings
are made, and both must be a prefix of the whole:

* the messages before it, with the generation prompt: the turn begins where that ends, exactly where
  the model begins to write;
* the messages up to and with it: the turn ends where that ends, white space aside.

Where this does not hold, the sample is dropped with the reason. A guess would train the draft model
on text that the target never wrote there.

Special tokens that users type into a message would become real ones in the rendered text. They
cannot move the spans, but they forge turns; such samples are dropped too.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import jinja2

from extraction.dataset.messages import with_text_arguments
from extraction.dataset.options import (
    CONTROL_TOKEN,
    TEMPLATE_ERROR,
    UNPROVEN_MASK,
    DroppedRecordError,
)
from hsstore.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from extraction.dataset.messages import Message
    from extraction.dataset.records import Conversation
    from extraction.dataset.tokenise import Span

GENERATION_MARKER: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
THINKING_TAGS: Final = frozenset({"<think>", "</think>"})
"""Tokens in some vocabularies, yet legitimate text of an assistant's message."""

RENDER_ERRORS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What templates raise on messages that they were not written for."""

QUESTION: Final = "How are you?"
ANSWER: Final = "Fine, thanks."
NEUTRAL: Final[list[Message]] = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": QUESTION},
]
"""What a template is probed with."""


class _GenerationPrompt(NamedTuple):
    """What the generation prompt adds behind a user's turn."""

    text: str
    """Empty if the template has none."""
    opening: str
    """The control token that it begins with, or all of it."""
    unasked: bool
    """The template writes it also where it was told not to."""


class ChatTemplate:
    """A tokenizer's chat template, with arguments that are the same for all conversations."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any]) -> None:  # noqa: ANN401
        if not tokenizer.chat_template:
            raise InputError(
                "the tokenizer has no chat template, so conversations cannot be rendered; "
                "give input_ids with loss_mask, or text"
            )
        self._tokenizer = tokenizer
        self._arguments = arguments
        self._prompts: dict[str, _GenerationPrompt] = {}
        self._control = self._control_pattern()

    def render(
        self, conversation: Conversation, train_on: Literal["all", "last"]
    ) -> tuple[str, list[Span]]:
        """Render a conversation and find the supervised turns.

        Returns
        -------
        text, spans
            The rendered text, and the character spans of the supervised turns in it, end-of-turn
            tokens included; ascending.

        Raises
        ------
        DroppedRecordError
            The template refuses the messages, a turn's place cannot be proven, or a message
            contains a control token.
        """
        self._check_control_tokens(conversation)
        rendering = self._start(conversation)
        turns = [i for i, m in enumerate(rendering.messages) if m["role"] == "assistant"]
        if self._has_markers(conversation.tools):
            spans = rendering.marked_spans(turns)
            return rendering.text, spans if train_on == "all" else spans[-1:]
        chosen = turns if train_on == "all" else turns[-1:]
        prompt = self._prompt(rendering.arguments)
        return rendering.text, [rendering.proven_span(turn, prompt) for turn in chosen]

    def prompt(self, conversation: Conversation) -> str:
        """Render a conversation up to where the model is to answer it.

        Raises
        ------
        DroppedRecordError
            The template refuses the messages, or a message contains a control token.
        """
        self._check_control_tokens(conversation)
        count = len(conversation.messages)
        return self._start(conversation).render(count, add_generation_prompt=True)

    def _start(self, conversation: Conversation) -> _Rendering:
        arguments = {**self._arguments, **conversation.template_kwargs}
        messages = conversation.messages
        try:
            return _Rendering(self._tokenizer, messages, conversation.tools, arguments)
        except DroppedRecordError:
            if not any("tool_calls" in message for message in messages):
                raise
        return _Rendering(
            self._tokenizer, with_text_arguments(messages), conversation.tools, arguments
        )

    def _has_markers(self, tools: list[Any] | None) -> bool:
        template = self._tokenizer.get_chat_template(tools=tools)
        return GENERATION_MARKER.search(template) is not None

    def _prompt(self, arguments: Mapping[str, Any]) -> _GenerationPrompt:
        key = json.dumps(arguments, sort_keys=True, default=repr)
        if key not in self._prompts:
            self._prompts[key] = self._probe_prompt(arguments)
        return self._prompts[key]

    def _probe_prompt(self, arguments: Mapping[str, Any]) -> _GenerationPrompt:
        try:
            rendering = _Rendering(self._tokenizer, NEUTRAL[:2], None, arguments)
            prompted = rendering.render(1, add_generation_prompt=True)
            asked = rendering.render(1, add_generation_prompt=False)
        except DroppedRecordError:
            return _GenerationPrompt("", "", unasked=False)
        text = prompted[_common_length(prompted, asked) :]
        opening = self._control.match(text)
        # What ends both a question and an answer, other than white space, is the next header.
        behind_question = asked.rpartition(QUESTION)[2][::-1]
        behind_answer = rendering.text.rpartition(ANSWER)[2][::-1]
        common = behind_question[: _common_length(behind_question, behind_answer)]
        unasked = not text and bool(common.strip())
        return _GenerationPrompt(text, opening.group() if opening else text, unasked)

    def _control_pattern(self) -> re.Pattern[str]:
        added = self._tokenizer.added_tokens_decoder.values()
        try:
            neutral = _Rendering(self._tokenizer, NEUTRAL, None, self._arguments)
            structure = neutral.render(len(NEUTRAL), add_generation_prompt=True)
        except DroppedRecordError:
            structure = ""
        # DeepSeek's <|User|> is not declared special; that the template writes it shows what it is.
        control = {t.content for t in added if t.special or t.content in structure}
        control.update(self._tokenizer.all_special_tokens)
        longest_first = sorted(control - THINKING_TAGS - {""}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def _check_control_tokens(self, conversation: Conversation) -> None:
        for index, message in enumerate(conversation.messages):
            self._check_texts(message, f"message {index + 1} ({message['role']})")
        self._check_texts(conversation.tools, "tools")

    def _check_texts(self, value: object, place: str) -> None:
        for text in _texts(value):
            match = self._control.search(text)
            if match:
                raise DroppedRecordError(
                    CONTROL_TOKEN, f"{place} contains the control token {match.group()!r}"
                )


class _Rendering:
    """One conversation, rendered whole, and as far as its proofs need."""

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401 - transformers' own
        messages: list[Message],
        tools: list[Any] | None,
        arguments: Mapping[str, Any],
    ) -> None:
        self.messages = messages
        self.arguments = arguments
        self._tokenizer = tokenizer
        self._tools = tools
        self.text = self.render(len(messages), add_generation_prompt=False)

    def render(self, count: int, *, add_generation_prompt: bool) -> str:
        """Render the first `count` messages."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                self.messages[:count],
                tools=self._tools,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self.arguments,
            )
        except RENDER_ERRORS as error:
            raise DroppedRecordError(
                TEMPLATE_ERROR,
                f"the chat template refuses the first {count} messages: "
                f"{type(error).__name__}: {error}",
            ) from error
        return text

    def marked_spans(self, turns: list[int]) -> list[Span]:
        """Take the spans that the template itself marks with ``{% generation %}``.

        Not on trust: some markers take in the turn's header (TRL 1.16's for DeepSeek-V3 do).
        """
        # Late: it imports torch where that is installed, and most runs need no tokenizer.
        from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415

        rendered: Any = render_jinja_template(
            [self.messages],
            tools=self._tools,
            chat_template=self._tokenizer.get_chat_template(tools=self._tools),
            return_assistant_tokens_mask=True,
            **{**self._tokenizer.special_tokens_map, **self.arguments},
        )
        text, spans = rendered[0][0], rendered[1][0]
        if text != self.text or len(spans) != len(turns):
            raise DroppedRecordError(
                UNPROVEN_MASK,
                f"the template marks {len(spans)} parts as generated, "
                f"the conversation has {len(turns)} assistant turns",
            )
        for turn, (start, _) in zip(turns, spans, strict=True):
            if start < _common_length(self._render_before(turn), text):
                raise self._unproven(turn, "the template marks its header as generated")
        return [self._without_trailing_space(start, end) for start, end in spans]

    def proven_span(self, turn: int, prompt: _GenerationPrompt) -> Span:
        """Find one assistant turn by the two renderings that end where it begins and ends."""
        before = self._render_before(turn)
        through = self.render(turn + 1, add_generation_prompt=False)
        if not self.text.startswith(before):
            raise self._unproven(
                turn, "the generation prompt is not how the whole conversation renders it"
            )
        if not self.text.startswith(through) or len(through) < len(before):
            raise self._unproven(turn, "it renders differently when other messages follow")
        span = (len(before), len(through))
        self._check_start(turn, span, prompt)
        self._check_content(turn, span)
        return self._without_trailing_space(*span)

    def _render_before(self, turn: int) -> str:
        try:
            return self.render(turn, add_generation_prompt=True)
        except DroppedRecordError as error:
            raise self._unproven(turn, str(error)) from error

    def _check_start(self, turn: int, span: Span, prompt: _GenerationPrompt) -> None:
        """Refuse to take a turn's header for text that the model wrote.

        That happens where the template writes the header but ignores `add_generation_prompt`. It may
        rightly write neither (Mistral's always, DeepSeek's behind a tool's output).
        """
        body = self.text[slice(*span)].lstrip()
        if prompt.text:
            headed = body.startswith(prompt.opening) and not self.text[: span[0]].endswith(
                prompt.text
            )
        else:
            message = self.messages[turn]
            own = [message["content"].strip(), message.get("reasoning_content", "").strip()]
            headed = not any(text and body.startswith(text) for text in own)
        if headed or prompt.unasked:
            raise self._unproven(turn, "the template does not obey add_generation_prompt")

    def _check_content(self, turn: int, span: Span) -> None:
        """Refuse a turn whose answer the template leaves out: it was written for other messages.

        Thinking may be left out: templates drop it on purpose.
        """
        body = self.text[slice(*span)]
        message = self.messages[turn]
        answer = message["content"].split("</think>")[-1].strip()
        names = [call["function"]["name"] for call in message.get("tool_calls", ())]
        for text in (answer, *names):
            if text not in body:
                raise self._unproven(turn, f"the template leaves out {text[:40]!r}")

    def _without_trailing_space(self, start: int, end: int) -> Span:
        return start, start + len(self.text[start:end].rstrip())

    def _unproven(self, turn: int, why: str) -> DroppedRecordError:
        return DroppedRecordError(UNPROVEN_MASK, f"message {turn + 1} (assistant): {why}")


def _common_length(first: str, second: str) -> int:
    """Count the characters that two texts have in common at their beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    shorter = min(len(first), len(second))
    return next((index for index, (one, other) in pairs if one != other), shorter)


def _texts(value: object) -> Iterator[str]:
    """Walk through all strings in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)

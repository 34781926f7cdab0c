"""Bring the messages of one conversation into the form that chat templates expect.

Two conventions are read, also mixed: OpenAI's (``role``, ``content``, ``tool_calls``,
``reasoning_content``) and ShareGPT's (``from``, ``value``). What a message has besides is kept as
it is, since templates may use it.
"""

from __future__ import annotations

import json
from typing import Any, Final

ROLES: Final = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
"""ShareGPT's and others' names of roles, and what templates call them."""

Message = dict[str, Any]


class FieldError(ValueError):
    """One field of a record is wrong; whoever knows file and line reports it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def normalise_messages(value: object, field: str) -> list[Message]:
    """Check and normalise a list of messages.

    Raises
    ------
    FieldError
        Not a list of objects, an unknown role, content of another kind than text.
    """
    if not isinstance(value, list):
        raise FieldError(field, f"a list of messages is expected, not {type(value).__name__}")
    if not value:
        raise FieldError(field, "the conversation is empty")
    return [_normalise(message, f"{field}[{index}]") for index, message in enumerate(value)]


def parse_json(value: object, field: str) -> Any:  # noqa: ANN401 - any JSON value
    """Parse a value that may have been stored as a JSON string; others pass as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise FieldError(field, f"not valid JSON: {error}") from error


def _normalise(message: object, field: str) -> Message:
    if not isinstance(message, dict):
        raise FieldError(field, f"an object is expected, not {type(message).__name__}")
    rest = dict(message)
    role_key = "from" if "from" in rest and "role" not in rest else "role"
    content_key = "value" if "value" in rest and "content" not in rest else "content"
    name = rest.pop(role_key, None)
    content = rest.pop(content_key, None)
    role = _role(name, f"{field}.{role_key}")
    if name == "function_call":
        rest["tool_calls"] = _sharegpt_calls(content, f"{field}.{content_key}")
        content = None
    _normalise_tool_calls(rest, field)
    _check_reasoning(rest, field)
    may_be_empty = role == "assistant" and "tool_calls" in rest
    text = _text(content, f"{field}.{content_key}", may_be_empty=may_be_empty)
    return {"role": role, "content": text, **rest}


def _role(name: object, field: str) -> str:
    if name is None:
        raise FieldError(field, "missing")
    if not isinstance(name, str) or name not in ROLES:
        raise FieldError(field, f"unknown role {name!r}; known are {', '.join(ROLES)}")
    return ROLES[name]


def _text(content: object, field: str, *, may_be_empty: bool) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = enumerate(content)
        return "".join(_part_text(part, f"{field}[{index}]") for index, part in parts)
    if content is None and may_be_empty:
        # As servers do: many templates concatenate the content whether or not there are calls.
        return ""
    found = "missing" if content is None else f"text is expected, not {type(content).__name__}"
    raise FieldError(field, found)


def _part_text(part: object, field: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if isinstance(part, dict) and kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise FieldError(field, f"only text can be extracted; this part is {kind!r}")


def _check_reasoning(message: Message, field: str) -> None:
    reasoning = message.get("reasoning_content", "")
    if reasoning is None:
        del message["reasoning_content"]
    elif not isinstance(reasoning, str):
        raise FieldError(f"{field}.reasoning_content", "text is expected")


def _normalise_tool_calls(message: Message, field: str) -> None:
    calls = message.pop("tool_calls", None)
    if not calls:
        return  # an empty list too: some templates only ask whether the key is there
    if not isinstance(calls, list):
        raise FieldError(f"{field}.tool_calls", "a list is expected")
    message["tool_calls"] = [
        _normalise_call(call, f"{field}.tool_calls[{index}]") for index, call in enumerate(calls)
    ]


def _normalise_call(call: object, field: str) -> Message:
    if not isinstance(call, dict):
        raise FieldError(field, "an object is expected")
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise FieldError(f"{field}.function.name", "missing")
    arguments = parse_json(function.get("arguments", {}), f"{field}.function.arguments")
    if not isinstance(arguments, dict):
        raise FieldError(f"{field}.function.arguments", "a JSON object is expected")
    outer = {key: item for key, item in call.items() if key not in {"name", "arguments"}}
    return {"type": "function", **outer, "function": {**function, "arguments": arguments}}


def _sharegpt_calls(value: object, field: str) -> list[Any]:
    parsed = parse_json(value, field)
    return parsed if isinstance(parsed, list) else [parsed]


def with_text_arguments(messages: list[Message]) -> list[Message]:
    """Give the same messages with the arguments of tool calls as JSON text.

    Most templates want objects and write JSON themselves; DeepSeek's paste text.
    """
    return [
        {**message, "tool_calls": [_with_text_arguments(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _with_text_arguments(call: Message) -> Message:
    function = call["function"]
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}

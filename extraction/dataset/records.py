"""Turn one record, as read, into what is to be tokenised.

A record is exactly one of: a conversation (``messages`` or ``conversations``), ``prompt`` with
``response``, ``text``, or already tokenised (``input_ids`` with ``loss_mask``, which then win over
whatever text is kept beside them). Any of them may carry an id, ``split``, ``metadata``, and for
templates ``system``, ``tools`` and ``chat_template_kwargs``. Other fields are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from extraction.dataset.messages import FieldError, Message, normalise_messages, parse_json
from hsstore.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from extraction.dataset.files import RawRecord

ID_FIELDS: Final = ("id", "sample_id", "conversation_id", "uuid")
MAX_ID_BYTES: Final = 255
DEFAULT_SPLIT: Final = "train"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for a chat template."""

    messages: list[Message]
    tools: list[Any] | None
    template_kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text: every token is supervised."""

    text: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens and mask as they were given."""

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Record:
    """One checked record."""

    sample_id: str | None
    """None: the record has none of its own."""
    split: str
    metadata: dict[str, Any]
    body: Conversation | Text | Tokens


def parse_record(raw: RawRecord, vocab_size: int | None) -> Record:
    """Check a record.

    Parameters
    ----------
    raw
        As read.
    vocab_size
        Token ids must be below it; None if it is not known.

    Raises
    ------
    InputError
        Naming file, line and field.
    """
    if isinstance(raw.value, InputError):
        raise raw.value
    value = {key: item for key, item in raw.value.items() if item is not None}
    try:
        return Record(
            sample_id=_sample_id(value),
            split=_split(value, raw.split),
            metadata=_metadata(value),
            body=_body(value, vocab_size),
        )
    except FieldError as error:
        raise InputError(f"{raw.location}: field {error.field!r}: {error}") from error


def _sample_id(value: dict[str, Any]) -> str | None:
    field = next((name for name in ID_FIELDS if name in value), None)
    if field is None:
        return None
    given = value[field]
    if not isinstance(given, (str, int)) or isinstance(given, bool):
        raise FieldError(field, f"text or an integer is expected, not {type(given).__name__}")
    text = str(given)
    if not 0 < len(text.encode()) <= MAX_ID_BYTES or "\0" in text:
        raise FieldError(field, f"must be 1 to {MAX_ID_BYTES} bytes without NUL")
    return text


def _split(value: dict[str, Any], default: str | None) -> str:
    split = value.get("split", default or DEFAULT_SPLIT)
    if not isinstance(split, str) or not split:
        raise FieldError("split", "a name is expected")
    return split


def _metadata(value: dict[str, Any]) -> dict[str, Any]:
    metadata = parse_json(value.get("metadata", {}), "metadata")
    if not isinstance(metadata, dict):
        raise FieldError("metadata", f"an object is expected, not {type(metadata).__name__}")
    try:
        json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError) as error:  # Arrow has timestamps, bytes and NaN
        raise FieldError("metadata", f"cannot be written as JSON: {error}") from error
    return metadata


def _body(value: dict[str, Any], vocab_size: int | None) -> Conversation | Text | Tokens:
    if "input_ids" in value or "loss_mask" in value:
        return _tokens(value, vocab_size)
    kinds: list[str] = [name for name in ("messages", "conversations", "text") if name in value]
    if "prompt" in value and "response" in value:
        kinds.append("prompt")
    if len(kinds) != 1:
        raise FieldError(
            " + ".join(kinds) or "messages",
            "a record is one of messages, conversations, prompt + response, text, "
            f"input_ids + loss_mask; its fields are {', '.join(value) or 'none'}",
        )
    if kinds == ["text"]:
        return Text(_plain_text(value, "text"))
    return _conversation(value, kinds[0])


def _conversation(value: dict[str, Any], kind: str) -> Conversation:
    messages = _prompted(value) if kind == "prompt" else normalise_messages(value[kind], kind)
    if "system" in value:
        system = {"role": "system", "content": _plain_text(value, "system")}
        messages = [system, *messages]
    tools = parse_json(value.get("tools"), "tools")
    if tools is not None and not _is_list_of_objects(tools):
        raise FieldError("tools", "a list of objects is expected")
    kwargs = value.get("chat_template_kwargs", {})
    if not isinstance(kwargs, dict):
        raise FieldError("chat_template_kwargs", "an object is expected")
    return Conversation(messages, tools or None, kwargs)


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _prompted(value: dict[str, Any]) -> list[Message]:
    prompt = value["prompt"]
    if isinstance(prompt, str):
        before = [{"role": "user", "content": prompt}]
    else:
        before = normalise_messages(prompt, "prompt")
    return [*before, {"role": "assistant", "content": _plain_text(value, "response")}]


def _plain_text(value: dict[str, Any], field: str) -> str:
    text = value[field]
    if not isinstance(text, str):
        raise FieldError(field, f"text is expected, not {type(text).__name__}")
    if not text:
        raise FieldError(field, "empty")
    return text


def _tokens(value: dict[str, Any], vocab_size: int | None) -> Tokens:
    input_ids = _integers(value, "input_ids")
    loss_mask = _integers(value, "loss_mask")
    limit = vocab_size or np.iinfo(np.int32).max
    wrong = np.flatnonzero((input_ids < 0) | (input_ids >= limit))
    if wrong.size:
        index = int(wrong[0])
        raise FieldError(
            f"input_ids[{index}]", f"{input_ids[index]} is not in 0 to {limit - 1} (the vocabulary)"
        )
    if len(loss_mask) != len(input_ids):
        raise FieldError(
            "loss_mask", f"has {len(loss_mask)} entries, input_ids has {len(input_ids)}"
        )
    if not np.isin(loss_mask, (0, 1)).all():
        raise FieldError("loss_mask", "only 0 and 1 are expected")
    return Tokens(input_ids.astype(np.int32), loss_mask.astype(np.uint8))


def _integers(value: dict[str, Any], field: str) -> npt.NDArray[np.int64]:
    given = value.get(field)
    if not isinstance(given, list) or not given:
        raise FieldError(field, "missing" if given is None else "a non-empty list is expected")
    allowed = (int, bool) if field == "loss_mask" else (int,)
    wrong = next((index for index, item in enumerate(given) if type(item) not in allowed), None)
    if wrong is not None:
        raise FieldError(f"{field}[{wrong}]", f"an integer is expected, not {given[wrong]!r}")
    try:
        return np.array(given, dtype=np.int64)
    except OverflowError as error:
        raise FieldError(field, "an integer that does not fit 64 bits") from error

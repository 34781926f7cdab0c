"""Read what is to be asked: the user turns of conversations, and nothing that somebody answered."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import xxhash

from extraction.dataset.files import read_records
from extraction.dataset.records import Conversation, parse_record
from hsstore.errors import InputError

if TYPE_CHECKING:
    from extraction.dataset.files import RawRecord
    from extraction.dataset.messages import Message
    from hsstore.location import Location


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to be had."""

    sample_id: str
    location: str
    """Where it was read, for messages."""
    asked: tuple[Message, ...]
    """System and user turns; each user turn is answered."""
    template_kwargs: dict[str, Any]
    """Of the whole run and its own, which win."""
    split: str
    metadata: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """Hash what the answers depend on: 16 hex digits."""
        text = json.dumps([self.asked, self.template_kwargs], sort_keys=True, ensure_ascii=False)
        return xxhash.xxh3_64_hexdigest(text.encode())


@dataclass(slots=True)
class Prompts:
    """All that a file asks."""

    good: list[Prompt]
    bad: list[str]
    """What is wrong with the records that were left out."""


def read_prompts(
    path: Location, template_kwargs: dict[str, Any], *, limit: int | None, skip_bad: bool
) -> Prompts:
    """Read and check the whole file, before anything is asked.

    Takes what `extract --data` takes, as far as it is a conversation; beside that records with
    `turns`, a list of questions as MT-bench has it, and with a `prompt` alone.

    Parameters
    ----------
    template_kwargs : dict
        For the chat template, where a record does not say otherwise.

    Raises
    ------
    InputError
        Naming file, line and field; or there is no prompt.
    """
    prompts, seen = Prompts([], []), dict[str, str]()
    for raw in islice(read_records(path), limit):
        try:
            prompt = _parse(raw, path.name.split(".")[0], template_kwargs)
            first = seen.setdefault(prompt.sample_id, prompt.location)
            if first != prompt.location:
                raise _wrong(raw, "id", f"duplicate {prompt.sample_id!r}, first at {first}")
            prompts.good.append(prompt)
        except InputError as error:
            if not skip_bad:
                raise
            prompts.bad.append(str(error))
    if not prompts.good:
        raise InputError("\n  ".join([f"{path}: no prompt in it", *prompts.bad[:3]]))
    return prompts


def _parse(raw: RawRecord, label: str, template_kwargs: dict[str, Any]) -> Prompt:
    record = parse_record(_as_messages(raw), None)
    if not isinstance(record.body, Conversation):
        raise _wrong(raw, "messages", "missing: only conversations can be answered")
    asked = [message for message in record.body.messages if message["role"] != "assistant"]
    roles = [message["role"] for message in asked]
    if record.body.tools or "tool" in roles:
        raise _wrong(raw, "tools" if record.body.tools else "messages", "no tools can be called")
    if "user" not in roles:
        raise _wrong(raw, "messages", "there is no user turn to answer")
    return Prompt(
        sample_id=record.sample_id or f"{label}-{raw.number}",
        location=raw.location,
        asked=tuple(asked),
        template_kwargs={**template_kwargs, **record.body.template_kwargs},
        split=record.split,
        metadata=record.metadata,
    )


def _as_messages(raw: RawRecord) -> RawRecord:
    """Give a record of questions alone the form of a conversation."""
    value = raw.value
    if isinstance(value, InputError) or {"messages", "conversations", "response"} & value.keys():
        return raw
    field = next((name for name in ("turns", "prompt") if name in value), None)
    if field is None:
        if {"text", "input_ids", "loss_mask"} & value.keys():
            return raw
        kinds, found = "messages, conversations, turns, prompt", ", ".join(value) or "none"
        raise _wrong(raw, "messages", f"a prompt is one of {kinds}; its fields are {found}")
    given = value[field]
    turns = [given] if isinstance(given, str) else given
    if field == "turns" or isinstance(given, str):
        if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
            raise _wrong(raw, field, "a list of texts is expected")
        turns = [{"role": "user", "content": turn} for turn in turns]
    rest = {key: item for key, item in value.items() if key != field}
    return replace(raw, value={**rest, "messages": turns})


def _wrong(raw: RawRecord, field: str, message: str) -> InputError:
    return InputError(f"{raw.location}: field {field!r}: {message}")

"""The file of answers: a line a conversation, in the order in which they ended.

It is all the state that a run has. A line is written at once, whole, behind the others; whatever
ends the process leaves at most one torn line, the last, and that conversation is had again.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from typing_extensions import override

from hsstore.errors import InputError, RefusedError
from hsstore.files import output_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from extraction.regenerate.prompts import Prompt

MARK: Final = "regenerated"
"""The field of `metadata` that says how a conversation was made."""
BEGINNING: Final = b'{"id": "'


@dataclass(frozen=True, slots=True)
class Settings:
    """What all answers of a file have in common."""

    model: str
    max_new_tokens: int
    temperature: float

    @override
    def __str__(self) -> str:
        """Say it as the command's options do."""
        return (
            f"model {self.model!r} with --max-new-tokens {self.max_new_tokens} "
            f"--temperature {self.temperature}"
        )


class AnswerFile:
    """The answers, open for one process; a context manager.

    Attributes
    ----------
    done : dict
        By the id of each conversation that is in the file, the fingerprint of its prompt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, str] = {}
        self._settings: set[Settings] = set()
        with output_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        """Take the file, and read what is in it.

        Raises
        ------
        RefusedError
            Another process writes it.
        InputError
            It is another file.
        OutputError
        """
        try:
            with output_errors(self.path):
                self._lock()
                self._read()
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with output_errors(self.path):
                os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def check(self, settings: Settings, prompts: Iterable[Prompt]) -> None:
        """Refuse to go on with answers of another model, or to other prompts.

        Raises
        ------
        RefusedError
        """
        if others := self._settings - {settings}:
            raise RefusedError(f"{self.path} has answers by {others.pop()}, not {settings}{_NEW}")
        for prompt in prompts:
            answered = self.done.get(prompt.sample_id)
            if answered is not None and answered != prompt.fingerprint:
                raise RefusedError(
                    f"{prompt.location}: {self.path} has answered another prompt under the id "
                    f"{prompt.sample_id!r}, or this one with other chat template arguments{_NEW}"
                )

    def append(self, prompt: Prompt, settings: Settings, messages: list[Any], ends: Any) -> None:  # noqa: ANN401
        """Write one conversation.

        Parameters
        ----------
        ends : list
            Why each answer ended, "stop" or "length".

        Raises
        ------
        OutputError
        """
        mark = {
            "model": settings.model,
            "max_new_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
            "prompt": prompt.fingerprint,
            "ends": ends,
        }
        record: dict[str, Any] = {
            "id": prompt.sample_id,
            "messages": messages,
            "split": prompt.split,
        }
        if prompt.template_kwargs:
            record["chat_template_kwargs"] = prompt.template_kwargs
        record["metadata"] = {**prompt.metadata, MARK: mark}
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        with output_errors(self.path):
            end = os.fstat(self._descriptor).st_size
            try:
                _write_all(self._descriptor, line)
            except OSError:
                os.ftruncate(self._descriptor, end)  # a full disk: no half of a line stays
                raise
        self.done[prompt.sample_id] = prompt.fingerprint

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(f"{self.path}: another process is writing it") from None

    def _read(self) -> None:
        whole_bytes = 0
        for number, line in enumerate(self._lines(), start=1):
            torn = not line.endswith(b"\n")
            try:
                self._take(json.loads(line))
            except (KeyError, TypeError):
                raise self._foreign(number) from None
            except ValueError:
                if not torn or not (number > 1 or BEGINNING.startswith(line[: len(BEGINNING)])):
                    raise self._foreign(number) from None
                os.ftruncate(self._descriptor, whole_bytes)
                return
            whole_bytes += len(line)
            if torn:  # only its end is missing
                _write_all(self._descriptor, b"\n")
                return

    def _foreign(self, number: int) -> InputError:
        return InputError(f"{self.path}, line {number}: not written by hsstore regenerate{_NEW}")

    def _take(self, record: dict[str, Any]) -> None:
        mark = record["metadata"][MARK]
        self._settings.add(Settings(*(mark[name] for name in Settings.__slots__)))
        self.done[record["id"]] = mark["prompt"]

    def _lines(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            yield from file


_NEW: Final = "; name another file, or move this one away"


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]

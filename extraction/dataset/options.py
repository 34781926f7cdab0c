"""What to take from the input, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import Field

from hsstore.spec import Record

BAD_INPUT: Final = "bad input"
TEMPLATE_ERROR: Final = "template error"
UNPROVEN_MASK: Final = "unproven mask"
CONTROL_TOKEN: Final = "control token in text"  # noqa: S105 - a token of a vocabulary
TOO_LONG: Final = "too long"
TOO_FEW_LOSS_TOKENS: Final = "too few loss tokens"

EXAMPLES_PER_REASON: Final = 3


class DatasetOptions(Record):
    """How records become samples."""

    train_on: Literal["all", "last"] = "all"
    """Supervise every assistant turn, or the last one only."""
    max_tokens: int | None = None
    """Longest sample kept whole."""
    too_long: Literal["truncate", "skip"] = "truncate"
    """What becomes of a longer one."""
    min_loss_tokens: int = 1
    """A sample with fewer supervised tokens, after truncation, is dropped."""
    limit: int | None = None
    """Stop after this many samples are kept."""
    skip_bad: bool = False
    """Count wrong records and go on, instead of raising at the first."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the chat template; a record's own `chat_template_kwargs` win."""
    trust_remote_code: bool = False
    """Allow a tokenizer that is Python code in its directory, such as Kimi-K2's."""


@dataclass(slots=True)
class DatasetReport:
    """What became of the records read."""

    read: int = 0
    kept: int = 0
    truncated: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    """Dropped records by reason."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """The first few messages of each reason, each naming file and line."""

    def drop(self, reason: str, message: str) -> None:
        """Count one dropped record."""
        self.drops[reason] = self.drops.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES_PER_REASON:
            examples.append(message)

    def summary(self) -> str:
        """Say it in one line: ``80 read, 78 kept (3 truncated); dropped: 2 too long``."""
        text = f"{self.read} read, {self.kept} kept"
        if self.truncated:
            text += f" ({self.truncated} truncated)"
        if self.drops:
            text += "; dropped: " + ", ".join(f"{n} {reason}" for reason, n in self.drops.items())
        return text


class DroppedRecordError(Exception):
    """A correct record that cannot become a sample. Counted by `reason`, never fatal.

    Not one of hsstore's errors: it never leaves this package.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

"""What `verify --semantic` reports: the part of the document about meaning."""

from __future__ import annotations

from enum import StrEnum

from hsstore.spec import Record


class SemanticKind(StrEnum):
    """What is wrong with the states of a sample, as far as they tell. A closed list; append only.

    A sample has one kind: that which explains most of what was seen, in this order.
    """

    NOT_FINITE = "not-finite"
    """Infinities or NaNs."""
    ZERO_ROWS = "zero-rows"
    """Rows that are all zero: never captured."""
    EQUAL_SLOTS = "equal-slots"
    """Two slots hold the same rows."""
    ROUNDED = "rounded"
    """The values have gone through a type of fewer bits, such as fp8."""
    SLOTS_PERMUTED = "slots-permuted"
    """Slots stand in each other's place."""
    SCALED = "scaled"
    """A slot is multiplied by a constant, such as 1 / TP."""
    NOT_NORMED = "not-normed"
    """The final norm was applied once less than the store says."""
    NORMED_AGAIN = "normed-again"
    """The final norm was applied once more than the store says."""
    NOISE = "noise"
    """The final state is no output of the final norm, and fits the tokens in no way."""
    ROWS_SHIFTED = "rows-shifted"
    """The rows are those of the same text, moved up or down."""
    WRONG_TOKENS = "wrong-tokens"
    """The states belong to other tokens: swapped samples, a stale buffer."""
    WRONG_MODEL = "wrong-model"
    """The tokens are right; layer, checkpoint, quantisation or context is another."""
    FOREIGN_PIECE = "foreign-piece"
    """Some rows on end belong to other tokens."""


class SemanticBad(Record):
    """One finding."""

    sample: int | None
    """None where it is the store's as a whole."""
    sample_id: str | None
    kind: SemanticKind
    slots: tuple[int, ...]
    detail: str


class SemanticCheck(Record):
    """One check of one slot, and its limit."""

    name: str
    slot: int | None
    """None where it is not about a single slot."""
    checked: bool
    samples: int
    """Whose values the limit comes from."""
    typical: float | None
    """Median of these."""
    limit: float | None
    """Beyond which a sample is bad."""
    why: str
    """Where the limit comes from, or why nothing could be checked."""
    sees: str
    blind: str
    """What it cannot see."""


class SemanticReport(Record):
    """What was found about the meaning of a store's states."""

    ok: bool
    """Nothing bad; see `checks` for what was not checked."""
    model_dir: str
    norm: str
    """The final norm, in words."""
    seed: int
    samples: int
    """Complete ones that were looked at."""
    unreadable: int
    """Whose states could not be read: verify itself names them."""
    tokens: int
    rows_fitted: int
    """That the identity maps were fitted on."""
    checks: tuple[SemanticCheck, ...]
    by_kind: dict[SemanticKind, int]
    """All findings, by kind."""
    bad: tuple[SemanticBad, ...]
    """The first of them."""

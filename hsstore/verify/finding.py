"""One thing that is wrong, before the sample's id is looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hsstore.report import BadKind


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and with which sample."""

    sample: int | None
    """None where no single sample can be named."""
    kind: BadKind
    detail: str

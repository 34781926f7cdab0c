"""One thing that is wrong, before the sample's id is looked up; and all of them, in bounded memory."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hsstore.report import BadKind

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_LISTED = 1_000_000
"""Findings that are kept with their details. All of them are counted."""
FIRST_SAMPLES = 5
"""Samples named for each kind in the table."""
NAMES_A_WRONG_BIT = frozenset(
    {
        BadKind.COMPLETION,
        BadKind.COMPLETE_AND_FAILED,
        BadKind.DIGEST,
        BadKind.MISSING_CHUNK,
        BadKind.MISSING_SHARD,
        BadKind.PAYLOAD_WITHOUT_BIT,
    }
)
"""Findings that explain a damaged completion chunk: the wrong value is that of their sample."""
REPAIRABLE = NAMES_A_WRONG_BIT | {
    BadKind.SHARD_INDEX,
    BadKind.CHUNK,
    BadKind.NOT_FINITE,
    BadKind.ZERO_ROW,
    BadKind.CONSTANT_ROW,
    BadKind.EQUAL_SLOTS,
    BadKind.PADDING,
}
"""Where a sample is named, its states can be asked for again, and are right then."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and with which sample."""

    sample: int | None
    """None where no single sample can be named."""
    kind: BadKind
    detail: str

    @property
    def is_repairable(self) -> bool:
        """Say whether clearing the sample's bit mends it."""
        return self.sample is not None and self.kind in REPAIRABLE


@dataclass(slots=True)
class Count:
    """The findings of one kind."""

    findings: int = 0
    repairable: int = 0
    first_samples: list[int] = field(default_factory=list)
    """Ascending."""
    example: tuple[int, str] = (-1, "")
    """Sample and detail of the one with the lowest number."""

    def add(self, finding: Finding) -> None:
        """Count one."""
        self.findings += 1
        self.repairable += finding.is_repairable
        one = (-1 if finding.sample is None else finding.sample, finding.detail)
        self.example = min(self.example, one) if self.example[1] else one
        if finding.sample is not None and finding.sample not in self.first_samples:
            insort(self.first_samples, finding.sample)
            del self.first_samples[FIRST_SAMPLES:]


class Ledger:
    """Collects findings: counts all, keeps the first million, marks the samples.

    Parameters
    ----------
    samples : int
        Of the store.

    Attributes
    ----------
    bad, repairable, wrong_bit : bool (samples,)
        Samples of a finding; of one that clearing the bit mends; of one that explains a damaged
        completion chunk.
    """

    def __init__(self, samples: int) -> None:
        self.counts: dict[BadKind, Count] = {}
        self.listed: list[Finding] = []
        self.bad, self.repairable, self.wrong_bit = np.zeros((3, samples), np.bool_)

    @property
    def total(self) -> int:
        """Count all findings."""
        return sum(count.findings for count in self.counts.values())

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings."""
        for finding in findings:
            self.counts.setdefault(finding.kind, Count()).add(finding)
            if len(self.listed) < MAX_LISTED:
                self.listed.append(finding)
            if finding.sample is not None:
                self.bad[finding.sample] = True
                self.repairable[finding.sample] |= finding.is_repairable
                self.wrong_bit[finding.sample] |= finding.kind in NAMES_A_WRONG_BIT

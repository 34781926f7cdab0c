"""Runs by the copies that they left beside their store, where no page of theirs can be read."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from extraction.diagnosis.collect import boot_id, pid_namespace, status_evidence
from extraction.diagnosis.copies import ALIVE_SECONDS
from extraction.diagnosis.evidence import CopyEvidence, StallEvidence, StatusEvidence
from extraction.diagnosis.finding import span
from extraction.status import RunStatus, WatchStatus, parse_status, parse_watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Copied:
    """A run as its copy shows it."""

    status: RunStatus
    stall: WatchStatus | None
    written_seconds: float
    """Unix time of the copy."""

    @property
    def ended(self) -> bool:
        """Whether the run has said how it ended."""
        return self.status.exit_code is not None

    @property
    def lives(self) -> bool:
        """Whether it has not ended, and was copied so lately that it lives or has only just died."""
        return not self.ended and self.age_seconds < ALIVE_SECONDS

    @property
    def elsewhere(self) -> bool:
        """Whether its process ids and its shared memory are not ours."""
        one = self.status
        there = (one.host, one.boot_id, one.pid_namespace)
        return there != (os.uname().nodename, boot_id(), pid_namespace())

    @property
    def age_seconds(self) -> float:
        """Since the copy was written; a clock that is behind makes none below zero."""
        return max(0.0, time.time() - self.written_seconds)

    def evidence(self) -> CopyEvidence:
        """Say what is known of the run beside its state."""
        one = self.status
        return CopyEvidence(
            one.run,
            one.host,
            one.worker_pid,
            self.elsewhere,
            self.age_seconds,
            one.exit_code,
            one.message,
            _stall(self.stall) if self.stall else None,
        )

    def status_evidence(self) -> StatusEvidence:
        """Give its state with ages at the time of the copy, and since then.

        Its own clock gives the former: clocks of two hosts may differ.
        """
        one = self.status
        now = status_evidence(one, held=self.elsewhere and self.lives)
        quiet = max(0.0, one.updated_seconds - one.progress_seconds)
        return replace(
            now,
            updated_age_seconds=0.0,
            progress_age_seconds=quiet + self.age_seconds,
            stages=(),
            copied=True,
        )

    def describe(self) -> str:
        """Say where and how old it is, in a line."""
        state = f"ended with {self.status.exit_code}" if self.ended else self.status.phase
        return (
            f"another run: {self.status.run} on {self.status.host}: {state}, "
            f"by its copy of {span(self.age_seconds)} ago"
        )


def parse_copies(copies: Sequence[dict[str, Any]]) -> list[Copied]:
    """Read what `read_copies` found: those that seem to live first, then the newest.

    What another version of hsstore wrote is left out.
    """
    found = list(_parse(copies))
    return sorted(found, key=lambda one: (not one.lives, -one.written_seconds))


def _parse(copies: Sequence[dict[str, Any]]) -> Iterator[Copied]:
    for copy in copies:
        try:
            status = parse_status(copy["status"].encode())
        except ValueError:
            continue
        if status is not None:
            yield Copied(status, parse_report(copy["stall"].encode()), copy["written_seconds"])


def parse_report(body: bytes) -> WatchStatus | None:
    """Read a stall report; None where there is none, or that of another version."""
    try:
        return parse_watch(body)
    except ValueError:
        return None


def _stall(stall: WatchStatus) -> StallEvidence:
    return StallEvidence(
        stall.verdict,
        stall.summary,
        stall.evidence,
        stall.advice,
        max(0.0, time.time() - stall.reported_seconds),
        lasts=stall.recovered_seconds is None,
    )

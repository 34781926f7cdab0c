"""Why a run stands still: the document of `hsstore doctor`."""

from __future__ import annotations

from hsstore.spec import Record
from hsstore.verdict import Verdict


class KillCost(Record):
    """What killing the run now would cost. Committed samples are never lost."""

    text: str
    asked_again: tuple[int, ...] = ()
    """Samples known to be asked for again, by number."""
    in_flight: int = 0
    """Requests under way, whether their numbers are known or not."""
    kept_in_spool: tuple[int, ...] = ()
    """Samples whose finished dumps lie in the spool: the next run takes them from there."""


class Diagnosis(Record):
    """One verdict and why: `hsstore doctor`, and the watchdog's stall reports."""

    verdict: Verdict
    summary: str
    """The verdict in one sentence."""
    evidence: tuple[str, ...]
    """What was seen, line by line; also what could not be seen."""
    advice: str
    kill_cost: KillCost
    run: str | None = None
    """The run that was looked at."""
    store: str = ""

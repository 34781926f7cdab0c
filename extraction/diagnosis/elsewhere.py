"""Rules for a run whose page cannot be read: by its copy, and by the word of its own watchdog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extraction.diagnosis.case import WAITS
from extraction.diagnosis.finding import RERUN, Finding, span
from hsstore.verdict import Verdict

if TYPE_CHECKING:
    from extraction.diagnosis.case import Case
    from extraction.diagnosis.evidence import CopyEvidence

KNOWN = {str(verdict) for verdict in Verdict}


def seen_in_a_copy(case: Case) -> Finding | None:
    """Judge a live run by what its own watchdog has said, or by its progress."""
    copy = case.evidence.copy
    if copy is None or copy.exit_code is not None:
        return None
    stall = copy.stall
    if stall is not None and stall.lasts and stall.verdict in KNOWN:
        return Finding(
            Verdict(stall.verdict),
            f"its watchdog on {copy.host} reported {span(stall.reported_age_seconds)} ago: "
            f"{stall.summary}",
            f"on {copy.host}: {stall.advice}",
        )
    return _without_a_report(case, copy) if copy.elsewhere else None


def _without_a_report(case: Case, copy: CopyEvidence) -> Finding:
    age = case.progress_age_seconds
    there = f"`hsstore doctor` on {copy.host} sees its process, spool and server"
    if case.phase == WAITS:
        return Finding(
            Verdict.WAITING_FOR_SERVER,
            f"the run on {copy.host} waits for its server",
            f"nothing to do while that is loading; {there}",
        )
    if not case.stalled:
        summary = f"it made progress on {copy.host} {span(age)} ago"
        return Finding(Verdict.HEALTHY, summary, "nothing to do")
    summary = f"no progress on {copy.host} for {span(age)}, and its watchdog has not said why yet"
    if case.in_flight:
        summary += f"; {case.in_flight} requests wait for the server"
        return Finding(Verdict.SERVER_HUNG, summary, f"look there: {there}")
    return Finding(Verdict.CLIENT_STUCK, summary, f"look there: {there}")


def unseen_host(case: Case) -> str:
    """Return the host of a run that has not ended and cannot be seen from here; empty: none."""
    copy = case.evidence.copy
    if copy is not None:
        return copy.host if copy.elsewhere and copy.exit_code is None else ""
    return case.output.claimed_elsewhere if case.output else ""


def lost_elsewhere(case: Case) -> Finding | None:
    """Say what is known of a run on another host that gives no sign of life."""
    host = unseen_host(case)
    if not host:
        return None
    copy = case.evidence.copy
    what = f"the run on {host} gives no sign of life"
    if copy is not None:
        what = f"run {copy.run} on {host} has given no sign of life for {span(copy.age_seconds)}"
    return Finding(
        Verdict.CLIENT_DEAD,
        f"{what}: it is dead, or {host} cannot write beside the store",
        f"ask there first: `hsstore doctor` on {host} sees the process itself. If it is dead, {RERUN} "
        "on that host, or on any other with --take-over",
    )

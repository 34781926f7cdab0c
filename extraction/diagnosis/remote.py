"""Rules for object stores: a URL that is written to, or read from, by a run or by the doctor himself.

What the doctor is answered says little of a run that lives: it may have other credentials, or another endpoint in
its environment. So of such a run its own requests are believed, and where nothing runs the doctor's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extraction.diagnosis.case import FULL_BYTES, OUTPUT_ERROR
from extraction.diagnosis.finding import RERUN, Finding
from hsstore.location import is_url
from hsstore.verdict import Verdict

if TYPE_CHECKING:
    from extraction.diagnosis.case import Case


def objects_silent(case: Case) -> Finding | None:
    """Say which request does not come back."""
    why, call = case.blocked_by(), case.late_disk_call
    if why is None:
        return None
    url = call.detail if call is not None and call.detail in why else case.store
    if not is_url(url):
        return None
    goes_on = (
        "The run goes on by itself when it answers, and ends with 75 when one request has failed nine times"
        if case.client_alive
        else f"Then {RERUN}"
    )
    if not url.startswith(case.store):  # the data that are read
        return Finding(
            Verdict.CLIENT_STUCK,
            f"the client waits for an object store that does not answer: {why}",
            f"see whether {url} can be reached from here. {goes_on}",
        )
    return Finding(
        Verdict.OUTPUT_BLOCKED,
        f"the object store is slow, or does not answer: {why}",
        f"see whether {case.store} can be reached from here, and what its provider or its log says. {goes_on}",
    )


def stage_full(case: Case) -> Finding | None:
    """Say that the disk before an object store takes nothing more."""
    if not is_url(case.store) or (case.client_alive and not case.stalled):
        return None
    status, output = case.status, case.output
    why = status.message if status is not None and status.exit_code == OUTPUT_ERROR else ""
    room = output.stage_free_bytes if output is not None else None
    if output is not None and room is not None and room < FULL_BYTES:
        why = why or f"no space left: {room:,} bytes are free in {output.stage}"
    if not why:
        return None
    full = case.is_full(why)
    return Finding(
        Verdict.OUTPUT_FULL if full else Verdict.OUTPUT_BLOCKED,
        f"the disk of the stage {'is full' if full else 'refuses writes'}: {why}",
        f"free space there, or name another directory with --stage; then {RERUN}",
    )


def objects_refused(case: Case) -> Finding | None:
    """Say why nothing can be read where nothing runs."""
    output = case.output
    if output is None or not output.error or case.client_alive or not is_url(case.store):
        return None
    return Finding(
        Verdict.OUTPUT_BLOCKED,
        f"the object store cannot be read from here: {output.error}",
        "see the bucket's name, and that this terminal has the credentials and the endpoint that the run had "
        f"(docs/object-stores.md); then ask again, or {RERUN}",
    )

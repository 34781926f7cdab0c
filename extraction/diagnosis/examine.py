"""Collect all the evidence there is: what `hsstore doctor` does.

Whatever may hang is done by children side by side: an examination takes about two deadlines at
most, whether disk and server answer or not.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from extraction.diagnosis.child import Child
from extraction.diagnosis.collect import (
    SAMPLE_SECONDS,
    collect_local,
    find_mount,
    look_at_server_process,
    look_at_spool,
)
from extraction.diagnosis.evidence import (
    Evidence,
    GpuEvidence,
    OutputEvidence,
    ProcessEvidence,
    ServerEvidence,
    SpoolEvidence,
)
from extraction.diagnosis.find import find_pages
from extraction.diagnosis.probe import (
    ask_for_health,
    look_at_gpus,
    look_at_output,
    read_log_tail,
    try_to_write,
)
from extraction.diagnosis.processes import look_at_process
from hsstore.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from extraction.diagnosis.child import Answer
    from extraction.diagnosis.find import FoundPage, Pages

DEADLINE_SECONDS = 5.0


def collect_all(
    store: Path,
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
    sample_seconds: float = 2 * SAMPLE_SECONDS,
) -> Evidence:
    """Examine the run of a store, its server and its disk.

    Parameters
    ----------
    deadline_seconds
        For every look at a disk or a server.
    sample_seconds
        How long to look at what should move.

    Raises
    ------
    InputError
        There is no such store, and no run that would make it.
    """
    path = os.path.abspath(store)  # noqa: PTH100  # as given: following links may hang
    pages = find_pages()
    page = pages.of(path)
    aliases = [] if page else sorted({one.status.store for one in pages.found} - {path})
    reading = Child(lambda tell: look_at_output(path, aliases, tell))
    began = time.monotonic()
    gpus = Child(look_at_gpus)
    local = Evidence() if page is None else collect_local(page.path, sample_seconds=sample_seconds)
    real = local.status.store_real if local.status else ""
    output = _read_output(path, real, reading.wait(began + deadline_seconds), deadline_seconds)
    if page is None and output.same:
        page = pages.of(output.same[0])
        local = collect_local(page.path, sample_seconds=sample_seconds) if page else local
    if page is None and output.evidence.exists is False:
        raise InputError(f"{path} does not exist, and no run is making it")
    evidence = _fill_in(local, output, pages, page)
    return replace(
        evidence,
        output=_try_to_write(output.evidence, deadline_seconds),
        server=_server(evidence, output.server, gpus, deadline_seconds),
    )


class _Output:
    """What the child said of the store, and what of it leads on."""

    def __init__(self, evidence: OutputEvidence, found: dict[str, Any]) -> None:
        self.evidence = evidence
        self.same: list[str] = found.get("same") or []
        self.spool = str(found.get("spool") or "")
        self.server = str(found.get("server") or "")
        self.claims: list[dict[str, Any]] = found.get("claims") or []


def _read_output(path: str, real: str, answer: Answer, deadline_seconds: float) -> _Output:
    found: dict[str, Any] = answer.result or {}
    mount = find_mount(real or path)
    names = ("free_bytes", "total_bytes", "free_inodes", "read_only", "exists", "unreadable_plan")
    counts = ("capture_hash", "samples", "complete", "failed", "last_result")
    known = {name: found[name] for name in (*names, *counts) if name in found}
    evidence = OutputEvidence(
        path,
        mount=mount.describe() if mount else "",
        read_answered=answer.answered,
        deadline_seconds=deadline_seconds,
        last_step=answer.last_step,
        error=answer.error,
        newest_write_age_seconds=found.get("newest_write_age_seconds"),
        claims=tuple(map(_describe_claim, found.get("claims") or ())),
        **known,
    )
    if mount is not None and mount.read_only and "read_only" not in found:
        evidence = replace(evidence, read_only=True)
    return _Output(evidence, found)


def _try_to_write(output: OutputEvidence, deadline_seconds: float) -> OutputEvidence:
    if not output.read_answered:
        return replace(output, write_untried="reading did not come back")
    writing = Child(lambda tell: try_to_write(output.path, tell))
    answer = writing.wait(time.monotonic() + deadline_seconds)
    if not answer.answered:
        return replace(output, write_answered=False, last_step=answer.last_step)
    result = answer.result or {}
    untried = result.get("untried", "")
    return replace(
        output,
        write_answered=None if untried else True,
        write_untried=untried,
        write_error=answer.error or result.get("error", ""),
    )


def _fill_in(local: Evidence, output: _Output, pages: Pages, page: FoundPage | None) -> Evidence:
    """Add what the store itself tells of its runs, where no page does."""
    notes = list(local.notes)
    if page is None:
        notes.append("no status page names this store: no run of ours, or it ended")
        notes += [f"pages in {hidden} are another user's" for hidden in pages.hidden]
        local = replace(local, worker=_claimed_worker(output.claims))
        if output.spool:
            local = replace(local, spool=look_at_spool(output.spool))
    return replace(local, notes=tuple(notes))


def _claimed_worker(claims: list[dict[str, Any]]) -> ProcessEvidence | None:
    """Find the process that holds a claim's lock on this machine."""
    for claim in claims:
        if claim["local"] and claim["held"]:
            return look_at_process(claim["pid"], "worker", sample_seconds=SAMPLE_SECONDS)
    return None


def _describe_claim(claim: dict[str, Any]) -> str:
    state = "its lock is held" if claim["held"] else "its lock is free: it is dead"
    if not claim["local"]:
        state = "whether it lives cannot be told from here"
    return f"run {claim['run']} (pid {claim['pid']} on {claim['host']}): {state}"


# --- the server -------------------------------------------------------------------------------


def _server(
    evidence: Evidence, recorded_url: str, gpus: Child, deadline_seconds: float
) -> ServerEvidence | None:
    url = evidence.status.server if evidence.status else recorded_url
    spool = evidence.spool
    log_path = spool.server.log_path if spool and spool.server else ""
    health = Child(lambda tell: ask_for_health(url, deadline_seconds, tell)) if url else None
    log = Child(lambda tell: read_log_tail(log_path, tell)) if log_path else None
    deadline = time.monotonic() + deadline_seconds
    found = _gpus(gpus.wait(deadline))
    if health is None:
        return None
    answer = health.wait(deadline)
    said = answer.result or {"health": "no answer", "detail": answer.error}
    tail, unreadable = _log(log.wait(deadline)) if log else ((), "server.json names none")
    return ServerEvidence(
        url,
        said["health"],
        said["detail"],
        process=_server_process(spool),
        log_tail=tail,
        log_unreadable=unreadable,
        gpus=found[0],
        gpus_unreadable=found[1],
    )


def _server_process(spool: SpoolEvidence | None) -> ProcessEvidence | None:
    return look_at_server_process(spool) if spool else None


def _log(answer: Answer) -> tuple[tuple[str, ...], str]:
    if not answer.answered:
        return (), f"did not come back in time, at: {answer.last_step}"
    return tuple(answer.result or ()), answer.error


def _gpus(answer: Answer) -> tuple[tuple[GpuEvidence, ...], str]:
    if not answer.answered:
        return (), "the driver did not answer in time"
    if answer.error.startswith("ModuleNotFoundError"):
        return (), "not looked at: nvidia-ml-py is not installed (pip install 'hsstore[gpu]')"
    if answer.error:
        return (), f"none: {answer.error}"
    return tuple(GpuEvidence(**gpu) for gpu in answer.result or ()), ""

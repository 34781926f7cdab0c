"""Collect all the evidence there is: what `hsstore doctor` does.

Whatever may hang is done by children side by side: an examination takes about two deadlines at
most, whether disk and server answer or not.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from extraction.diagnosis.child import Child
from extraction.diagnosis.collect import (
    SAMPLE_SECONDS,
    collect_local,
    find_mount,
    look_at_server_process,
    look_at_spool,
)
from extraction.diagnosis.evidence import (
    NOT_ASKED,
    Evidence,
    GpuEvidence,
    OneServerEvidence,
    OutputEvidence,
    ProcessEvidence,
    ServerEvidence,
    SpoolEvidence,
)
from extraction.diagnosis.find import find_pages
from extraction.diagnosis.last_seen import Copied, parse_copies
from extraction.diagnosis.objects import UNTRIED
from extraction.diagnosis.probe import (
    ask_for_health,
    free_bytes,
    look_at_gpus,
    look_at_output,
    read_log_tail,
    try_to_write,
)
from extraction.diagnosis.processes import look_at_process, parent_of
from hsstore.errors import InputError
from hsstore.location import RemotePath, absolute_text, is_url, locate, runs_beside

if TYPE_CHECKING:
    from pathlib import Path

    from extraction.diagnosis.child import Answer
    from extraction.diagnosis.find import FoundPage, Pages
    from hsstore.location import Location

DEADLINE_SECONDS = 5.0
STACKS_AFTER_SECONDS = 2.0
"""A worker that gets on is not asked for its stacks: it writes them from a signal handler, without the
interpreter's lock, which can crash one whose threads are all computing (seen once, at ten a second)."""


def collect_all(
    store: Location,
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
    path = absolute_text(store)  # as given: following links may hang
    if isinstance(store, RemotePath):
        runs_beside(store)  # refuses a whole bucket
        from hsstore.objects.client import load_client  # noqa: PLC0415  # brings fsspec

        load_client(str(store))  # here: only requests are to count against the deadline
    pages = find_pages()
    page = next(iter(pages.of(path)), None)
    reading = Child(lambda tell: look_at_output(locate(path), tell))
    began = time.monotonic()
    gpus = Child(look_at_gpus)
    local = Evidence() if page is None else _collect(page.path, sample_seconds)
    real = local.status.store_real if local.status else ""
    output = _read_output(path, real, reading.wait(began + deadline_seconds), deadline_seconds)
    if page is None:
        page = next(iter(pages.of(output.real)), None)
        local = _collect(page.path, sample_seconds) if page else local
    if page is None:
        _refuse_what_is_no_store(output)
    evidence = _fill_in(local, output, pages, page)
    return replace(
        evidence,
        servers=_ask_each(evidence.servers, deadline_seconds),
        output=_look_at_room(output.evidence, page, deadline_seconds),
        server=_server(
            evidence,
            output.server,
            gpus,
            deadline_seconds,
            elsewhere=page is None and _is_elsewhere(evidence, output),
        ),
    )


def _refuse_what_is_no_store(output: _Output) -> None:
    """Refuse a wrong path; of a damaged store what lies beside it is left."""
    path = output.evidence.path
    if output.evidence.exists is False:
        raise InputError(f"{path} does not exist, and no run is making it")
    if not (output.is_store or output.claims or output.copies):
        raise InputError(f"{path} is no store of ours: it has no zarr.json, and no run is known")


class _Output:
    """What the child said of the store, and what of it leads on."""

    def __init__(self, evidence: OutputEvidence, found: dict[str, Any]) -> None:
        self.evidence = evidence
        self.real = str(found.get("real") or "")
        self.is_store = bool(found.get("is_store", True))
        self.host = str(found.get("host") or "")
        self.spool = str(found.get("spool") or "")
        self.server = str(found.get("server") or "")
        self.claims: list[dict[str, Any]] = found.get("claims") or []
        self.copies = parse_copies(found.get("copies") or [])


def _read_output(path: str, real: str, answer: Answer, deadline_seconds: float) -> _Output:
    found: dict[str, Any] = answer.result or {}
    claims = found.get("claims") or []
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
        error=answer.error or found.get("error", ""),
        newest_write_age_seconds=found.get("newest_write_age_seconds"),
        claims=tuple(map(_describe_claim, claims)),
        claimed_elsewhere=next((one["host"] for one in claims if not one["local"]), ""),
        **known,
    )
    if mount is not None and mount.read_only and "read_only" not in found:
        evidence = replace(evidence, read_only=True)
    return _Output(evidence, found)


def _look_at_room(
    output: OutputEvidence, page: FoundPage | None, deadline_seconds: float
) -> OutputEvidence:
    """Try to write; what goes to an object store needs room in the stage of its run."""
    if not is_url(output.path):
        return _try_to_write(output, deadline_seconds)
    output = replace(output, write_untried=UNTRIED)
    stage = page.status.stage if page else ""
    if not stage:
        return output
    answer = Child(partial(free_bytes, stage)).wait(time.monotonic() + deadline_seconds)
    return replace(output, stage=stage, stage_free_bytes=answer.result)


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


def _collect(page: Path, sample_seconds: float) -> Evidence:
    return collect_local(
        page, sample_seconds=sample_seconds, stacks_after_seconds=STACKS_AFTER_SECONDS
    )


def _fill_in(local: Evidence, output: _Output, pages: Pages, page: FoundPage | None) -> Evidence:
    """Add what the store itself tells of its runs, where no page does."""
    copies = output.copies if page is None else [one for one in output.copies if one.elsewhere]
    notes = list(local.notes)
    if page is None:
        notes.append("no run on this machine says that it works on this store")
        notes += [f"pages in {hidden} are another user's" for hidden in pages.hidden]
        local = _without_a_page(local, output, copies)
    shown = local.copy.run if local.copy else ""
    notes += [one.describe() for one in copies if one.lives and one.status.run != shown]
    return replace(local, notes=tuple(notes))


def _without_a_page(local: Evidence, output: _Output, copies: list[Copied]) -> Evidence:
    claim = next((one for one in output.claims if one["local"] and one["lives"]), None)
    if claim is not None:  # a run of this machine: its own copy, not that of another one
        local = replace(local, worker=_claimed_worker(claim["pid"]))
        copies = [one for one in copies if one.status.run == claim["run"]]
    copied = next(iter(copies), None)
    if copied is not None:
        local = replace(local, copy=copied.evidence())
        if not copied.ended:
            local = replace(local, status=copied.status_evidence())
            if local.worker is None and not copied.elsewhere:
                local = replace(local, worker=_copied_worker(copied))
    if output.spool and not _is_elsewhere(local, output):
        local = replace(local, spool=look_at_spool(output.spool))
    return local


def _is_elsewhere(evidence: Evidence, output: _Output) -> bool:
    """Tell whether spool and server of the last run are another host's: here their names mislead."""
    if evidence.copy is not None:
        return evidence.copy.elsewhere
    return bool(output.host) and output.host != os.uname().nodename


def _claimed_worker(pid: int) -> ProcessEvidence:
    """Look at the process that has a claim, and is known to live on this machine."""
    worker = look_at_process(pid, "worker", sample_seconds=SAMPLE_SECONDS)
    hidden = "its claim says that it lives, and the kernel does not show it to us"
    return worker if worker.alive else replace(worker, alive=True, unreadable=hidden)


def _copied_worker(copied: Copied) -> ProcessEvidence:
    """Find the worker of a run of this machine whose page cannot be read."""
    status = copied.status
    if parent_of(status.worker_pid) != status.supervisor_pid:
        return ProcessEvidence(status.worker_pid, "worker", alive=False)
    return look_at_process(status.worker_pid, "worker", sample_seconds=SAMPLE_SECONDS)


def _describe_claim(claim: dict[str, Any]) -> str:
    state = "it lives" if claim["lives"] else "it is dead"
    if not claim["local"]:
        state = "whether it lives cannot be told from here"
    return f"run {claim['run']} (pid {claim['pid']} on {claim['host']}): {state}"


# --- the server -------------------------------------------------------------------------------


def _server(
    evidence: Evidence,
    recorded_url: str,
    gpus: Child,
    deadline_seconds: float,
    *,
    elsewhere: bool,
) -> ServerEvidence | None:
    url = evidence.status.server if evidence.status else recorded_url
    if elsewhere or not url:
        gpus.wait(time.monotonic())  # nobody wants to know any more
        return _server_elsewhere(url, deadline_seconds) if url else None
    spool = evidence.spool
    log_path = spool.server.log_path if spool and spool.server else ""
    health = Child(lambda tell: ask_for_health(url, deadline_seconds, tell))
    log = Child(lambda tell: read_log_tail(log_path, tell)) if log_path else None
    deadline = time.monotonic() + deadline_seconds
    found = gpu_evidence(gpus.wait(deadline))
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


def _ask_each(
    servers: tuple[OneServerEvidence, ...], deadline_seconds: float
) -> tuple[OneServerEvidence, ...]:
    """Ask each of several servers for its health."""
    asked = [Child(partial(ask_for_health, one.server.url, deadline_seconds)) for one in servers]
    deadline = time.monotonic() + deadline_seconds
    said = [child.wait(deadline).result or {"health": "no answer"} for child in asked]
    return tuple(
        replace(one, server=replace(one.server, **answer))
        for one, answer in zip(servers, said, strict=True)
    )


def _server_elsewhere(url: str, deadline_seconds: float) -> ServerEvidence:
    """Ask a server that only a run of another host knows; GPUs and log are there, too."""
    if _is_loopback(url):
        return ServerEvidence(url, NOT_ASKED, "that is the run's own host")
    health = Child(lambda tell: ask_for_health(url, deadline_seconds, tell))
    said = health.wait(time.monotonic() + deadline_seconds).result
    return ServerEvidence(url, **(said or {"health": "no answer"}))


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _server_process(spool: SpoolEvidence | None) -> ProcessEvidence | None:
    return look_at_server_process(spool) if spool else None


def _log(answer: Answer) -> tuple[tuple[str, ...], str]:
    if not answer.answered:
        return (), f"did not come back in time, at: {answer.last_step}"
    return tuple(answer.result or ()), answer.error


def gpu_evidence(answer: Answer) -> tuple[tuple[GpuEvidence, ...], str]:
    """Return the GPUs of this machine, or why none are known."""
    if not answer.answered:
        return (), "the driver did not answer in time"
    if answer.error.startswith("ModuleNotFoundError"):
        return (), "not looked at: nvidia-ml-py is not installed (pip install 'hsstore[gpu]')"
    if answer.error:
        return (), f"NVML shows none here: {answer.error.partition(': ')[2] or answer.error}"
    return tuple(GpuEvidence(**gpu) for gpu in answer.result or ()), ""

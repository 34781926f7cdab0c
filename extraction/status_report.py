"""Collect how the runs on a store are doing, though its file system may hang.

First what lies in shared memory; the store's own files, and the copies of other hosts beside it,
are read by a child process with a deadline. Under a URL the signs of life of its runs are their copies; they are
waited for where there is nothing else to show.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from extraction.diagnosis.child import Child
from extraction.diagnosis.copies import ALIVE_SECONDS, read_copies, runs_directory
from extraction.diagnosis.find import find_pages
from extraction.diagnosis.last_seen import parse_copies, parse_report
from extraction.diagnosis.objects import read_sign_copies
from extraction.page import read_page
from extraction.status import RunStatus, WatchStatus, watch_path
from hsstore.errors import CorruptStoreError, HsstoreError, UnreachableError
from hsstore.location import RemotePath, absolute_text
from hsstore.report import (
    RunReport,
    ServerReport,
    StageReport,
    StallReport,
    StatusReport,
    TotalReport,
)
from hsstore.store import Store

if TYPE_CHECKING:
    from typing import Literal

    from extraction.diagnosis.child import Tell
    from extraction.diagnosis.find import FoundPage
    from hsstore.location import Location

DEADLINE_SECONDS = 3.0
OBJECTS_SECONDS = 10.0
"""So long an object store is waited for where a run of this machine can be shown without it."""
SHOWN_COPIES = 5
"""Of runs that have ended."""


class StatusReader:
    """Reads the status of one store, as often as wanted.

    Parameters
    ----------
    store : Path or RemotePath
        As the runs were given it.
    """

    def __init__(self, store: Location) -> None:
        self._location = store
        self._store = absolute_text(store)
        self._hangs = ""
        self._real = ""
        self._asked: Future[dict[str, Any]] | None = None
        """What an object store was asked, and has not answered yet."""

    def read(self) -> StatusReport:
        """Look now. A file system that did not answer once is not asked again.

        Raises
        ------
        UnreachableError, InputError
            Of an object store.
        """
        disk = self._ask_disk()
        self._real = disk.get("real", self._real)
        local = [_local(page) for page in find_pages().of(self._store, self._real)]
        known = {run.run for run in local}
        copies = [
            _report(one.status, one.stall, "copy", one.age_seconds)
            for one in parse_copies(disk.get("copies", []))
            if one.status.run not in known
        ]
        ended = [run for run in copies if not is_alive(run)]
        runs = (*local, *(run for run in copies if is_alive(run)), *ended[:SHOWN_COPIES])
        return StatusReport(
            store=self._store,
            samples=disk.get("samples"),
            complete=disk.get("complete"),
            failed=disk.get("failed"),
            unread=self._hangs or disk.get("unread", ""),
            total=_total([run for run in runs if is_alive(run)], disk),
            runs=runs,
        )

    def _ask_disk(self) -> dict[str, Any]:
        if isinstance(self._location, RemotePath):
            return self._ask_objects(self._location)
        if self._hangs:
            return {}
        child = Child(lambda tell: _read_disk(Path(self._store), tell))
        answer = child.wait(time.monotonic() + DEADLINE_SECONDS)
        if not answer.answered:
            self._hangs = f"no answer in {DEADLINE_SECONDS:.0f} s: {answer.last_step}"
            return {}
        found: dict[str, Any] = answer.result or {"unread": answer.error}
        return found

    def _ask_objects(self, store: RemotePath) -> dict[str, Any]:
        can_wait = not find_pages().of(self._store)
        asked = self._asked = self._asked or _in_background(store)
        try:
            return asked.result(None if can_wait else OBJECTS_SECONDS)
        except TimeoutError:  # the next look may find what has come by then
            return {"unread": f"no answer in {OBJECTS_SECONDS:.0f} s so far"}
        except UnreachableError as error:
            if can_wait:
                raise
            return {"unread": str(error)}
        finally:
            if asked.done():
                self._asked = None


def _in_background(store: RemotePath) -> Future[dict[str, Any]]:
    """Read a store in a thread that nobody waits for at the end."""
    answer: Future[dict[str, Any]] = Future()

    def read() -> None:
        try:
            answer.set_result(_read_objects(store))
        except BaseException as error:  # noqa: BLE001  # whoever asks gets it
            answer.set_exception(error)

    Thread(target=read, name="status", daemon=True).start()
    return answer


def _local(page: FoundPage) -> RunReport:
    source: Literal["live", "dead"] = "live" if page.held else "dead"
    age = max(time.time() - page.status.updated_seconds, 0.0)
    return _report(page.status, parse_report(read_page(watch_path(page.path))), source, age)


def _read_objects(store: RemotePath) -> dict[str, Any]:
    """Read the completion of a store under a URL, and the signs of life beside it.

    Raises
    ------
    UnreachableError, InputError
    """
    found: dict[str, Any] = {"real": str(store), "copies": read_sign_copies(store)}
    try:
        return found | _counts(store)
    except CorruptStoreError as error:
        return found | {"unread": str(error)}


def _read_disk(store: Path, tell: Tell) -> dict[str, Any]:
    """Read the completion, and the copies beside the store. Runs in the child."""
    tell(f"reading {runs_directory(store)}")
    found: dict[str, Any] = {"real": os.path.realpath(store), "copies": read_copies(store)}
    tell(f"reading {store}")
    try:
        return found | _counts(store)
    except HsstoreError as error:
        return found | {"unread": str(error)}


def _counts(store: Location) -> dict[str, Any]:
    opened = Store.open(store)
    spec, completion = opened.spec, opened.completion()
    complete, failed = int(completion.complete.sum()), int((completion.failed > 0).sum())
    counts = {"samples": len(completion.complete), "complete": complete, "failed": failed}
    return counts | {"tokens": spec.dataset.tokens}


def _report(
    status: RunStatus,
    watch: WatchStatus | None,
    source: Literal["live", "dead", "copy"],
    age_seconds: float,
) -> RunReport:
    now = time.time()
    complete = status.complete + status.complete_now
    failed = status.failed + status.failed_now
    left = max(status.tokens_pending - status.tokens_now, 0)
    rate = status.tokens_per_second_15min or status.tokens_per_second_1min
    stored = status.bytes_stored_now
    return RunReport(
        run=status.run,
        source=source,
        age_seconds=age_seconds,
        worker=status.worker,
        host=status.host,
        pid=status.worker_pid,
        phase=status.phase,
        samples=status.samples,
        complete=complete,
        failed=failed,
        pending=max(status.samples - complete - failed, 0),
        complete_now=status.complete_now,
        tokens_now=status.tokens_now,
        tokens_left=left,
        tokens_per_second_1min=status.tokens_per_second_1min,
        tokens_per_second_15min=status.tokens_per_second_15min,
        bytes_per_second_1min=status.bytes_per_second_1min,
        ratio=status.bytes_committed_now / stored if stored else None,
        eta_seconds=left / rate
        if rate and status.exit_code is None and not status.worker
        else None,
        in_flight=status.in_flight,
        in_flight_cap=status.in_flight_cap,
        open_blocks=status.open_blocks,
        retries=status.retries,
        spool=status.spool,
        spool_used_bytes=status.spool_used_bytes,
        spool_budget_bytes=status.spool_budget_bytes,
        server=status.server,
        servers=tuple(ServerReport(**one.model_dump()) for one in status.servers),
        heartbeat_age_seconds=_age(now, status.heartbeat_seconds),
        progress_age_seconds=max(now - status.progress_seconds, 0.0),
        stages=tuple(
            StageReport(
                name=stage.name,
                items=stage.items,
                oldest_age_seconds=_age(now, stage.oldest_since_seconds),
                detail=stage.detail,
            )
            for stage in status.stages
        ),
        last_errors=status.last_errors,
        message=status.message,
        exit_code=status.exit_code,
        stall=_stall(watch, now),
    )


def is_alive(run: RunReport) -> bool:
    """Whether a run works, as far as it is seen from here."""
    seen = run.source == "live" or (run.source == "copy" and run.age_seconds < ALIVE_SECONDS)
    return seen and run.exit_code is None


def _total(runs: list[RunReport], disk: dict[str, Any]) -> TotalReport | None:
    """Add up what runs do, all of them alive; `disk` is what the store says of itself."""
    if not runs:
        return None

    def total(name: str) -> Any:  # noqa: ANN401  # a count or a rate
        return sum(getattr(run, name) for run in runs)

    rate = total("tokens_per_second_15min") or total("tokens_per_second_1min")
    eta = None
    if rate and "samples" in disk:
        pending = disk["samples"] - disk["complete"] - disk["failed"]
        eta = pending * disk["tokens"] / disk["samples"] / rate
    return TotalReport(
        runs=len(runs),
        complete_now=total("complete_now"),
        tokens_now=total("tokens_now"),
        in_flight=total("in_flight"),
        tokens_per_second_1min=total("tokens_per_second_1min"),
        tokens_per_second_15min=total("tokens_per_second_15min"),
        bytes_per_second_1min=total("bytes_per_second_1min"),
        eta_seconds=eta,
    )


def _age(now: float, since: float | None) -> float | None:
    return max(now - since, 0.0) if since else None


def _stall(watch: WatchStatus | None, now: float) -> StallReport | None:
    if watch is None:
        return None
    return StallReport(
        verdict=watch.verdict,
        summary=watch.summary,
        stalled_seconds=watch.stalled_seconds,
        reported_age_seconds=max(now - watch.reported_seconds, 0.0),
        reports=watch.reports,
        recovered=watch.recovered_seconds is not None,
        aborted=watch.aborted,
        evidence=watch.evidence,
        advice=watch.advice,
        kill_cost=watch.kill_cost,
    )

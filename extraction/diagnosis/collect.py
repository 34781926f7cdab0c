"""Collect the evidence that lies in /proc and in shared memory: what a supervisor may look at.

Nothing here touches a disk, imports anything, or waits for anybody for longer than said.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from extraction.diagnosis.case import CLIENT_STAGES, DISK
from extraction.diagnosis.evidence import (
    NOT_ASKED,
    AnnouncementEvidence,
    Evidence,
    HeartbeatEvidence,
    OneServerEvidence,
    OutputEvidence,
    ProcessEvidence,
    ServerEvidence,
    SpoolEvidence,
    SpoolFileEvidence,
    StageEvidence,
    StatusEvidence,
)
from extraction.diagnosis.mounts import known_mounts, mount_of
from extraction.diagnosis.processes import has_open, look_at_process, parent_of
from extraction.diagnosis.stacks import read_stacks
from extraction.page import is_locked, read_page
from extraction.spool import (
    NoServerError,
    SpoolForeignError,
    SpoolMissingError,
    SpoolView,
)
from extraction.spool.directory import CLIENT_LOCK, SERVER_LOCK
from extraction.spool.lock import is_held, read_holder
from extraction.status import parse_status, stacks_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from extraction.diagnosis.mounts import Mount
    from extraction.spool import Heartbeat, ServerInfo, SpoolFile
    from extraction.status import RunStatus, ServerState

SAMPLE_SECONDS: Final = 0.25
"""Between two looks at what should move."""
NEEDS_A_SERVER: Final = ("waiting for server", "handshake", "extracting")
"""Phases in which nothing moves without one."""
_HOST: Final = os.uname().nodename
_BOOT: Final = "/proc/sys/kernel/random/boot_id"


def collect_local(
    page: Path,
    spool: Path | None = None,
    *,
    sample_seconds: float = SAMPLE_SECONDS,
    stacks_after_seconds: float = 0.0,
) -> Evidence:
    """Look at a run from its own machine: its page, its worker, its spool; not at its disk.

    Parameters
    ----------
    page
        The status page.
    spool
        The spool; None: the one that the page names.
    sample_seconds
        How long to look at what should move.
    stacks_after_seconds
        Ask the worker for its Python stacks when something has stood still for so long.
    """
    status, problem = _read(page)
    where = str(spool or (status.spool if status else ""))
    beat = _heartbeat(where)
    beats = {one.spool: _heartbeat(one.spool) for one in _several(status)}
    stacks = status is None or _still_seconds(status) >= stacks_after_seconds
    worker = look_at_worker(status, page, sample_seconds=sample_seconds, stacks=stacks)
    now, _ = _read(page)  # again: what is written all the time must have moved
    found = now or status
    seen = look_at_spool(where, beat) if where else None
    return Evidence(
        status=status_evidence(found, held=is_locked(page)) if found else None,
        worker=worker,
        spool=seen,
        server=_look_at_server(found, seen),
        output=unasked_output(found.store, found.store_real) if found and found.store else None,
        servers=tuple(_one_server(one, beats.get(one.spool)) for one in _several(found)),
        notes=(problem,) if problem else (),
    )


def status_evidence(status: RunStatus, *, held: bool) -> StatusEvidence:
    """Turn times into ages."""
    now = time.time()
    # A clock that was set back must not give an age below zero.
    updated_age = max(0.0, now - status.updated_seconds)
    return StatusEvidence(
        run=status.run,
        store=status.store,
        phase=status.phase,
        held=held,
        updated_age_seconds=updated_age,
        progress_age_seconds=max(updated_age, now - status.progress_seconds),
        exit_code=status.exit_code,
        message=status.message,
        samples=status.samples,
        done=status.complete + status.failed + status.complete_now + status.failed_now,
        in_flight=status.in_flight,
        only_busy=status.only_busy,
        at_risk=status.at_risk,
        stages=tuple(
            StageEvidence(
                one.name,
                one.items,
                None
                if one.oldest_since_seconds is None
                else max(0.0, now - one.oldest_since_seconds),
                one.detail,
            )
            for one in status.stages
        ),
        last_errors=status.last_errors,
        server=status.server,
        spool=status.spool,
        store_real=status.store_real,
        unserved=not status.server and status.phase in NEEDS_A_SERVER,
    )


def _still_seconds(status: RunStatus) -> float:
    """Return for how long nothing has moved, or one thing in the worker's own hands has not."""
    seen = status_evidence(status, held=True)
    own = [one for one in seen.stages if one.name in CLIENT_STAGES or one.name.startswith(DISK)]
    return max([seen.progress_age_seconds, *(one.oldest_age_seconds or 0.0 for one in own)])


def look_at_worker(
    status: RunStatus | None, page: Path, *, sample_seconds: float, stacks: bool
) -> ProcessEvidence | None:
    """Look at the worker of a run, if the process of that number is still the worker."""
    if status is None or not status.worker_pid or _is_foreign(status.pid_namespace):
        return None
    pid = status.worker_pid
    if status.boot_id and status.boot_id != boot_id():
        return ProcessEvidence(pid, "worker", alive=False)
    path = str(stacks_path(page))
    ours = _is_worker(pid, status.supervisor_pid, path)
    if ours is False:
        return ProcessEvidence(pid, "worker", alive=False)
    worker = look_at_process(pid, "worker", sample_seconds=sample_seconds)
    if not stacks or not worker.alive or worker.stopped or worker.killed:
        return worker
    if has_open(pid, path) is False:  # the signal would end it
        return replace(worker, stacks_unreadable="the stacks cannot be read: not offered (yet)")
    found, problem = read_stacks(pid, path)
    return replace(worker, stacks=found, stacks_unreadable=problem)


def look_at_spool(path: str, before: Heartbeat | None = None) -> SpoolEvidence:
    """Look at a spool and all that lies in it.

    Parameters
    ----------
    before
        The heartbeat a while ago: whether it has advanced is told then.
    """
    try:
        view = SpoolView(Path(path))
        return _spool(view, path, before)
    except (SpoolMissingError, FileNotFoundError):
        return SpoolEvidence(path, missing=True)
    except (SpoolForeignError, OSError) as error:
        return SpoolEvidence(path, unreadable=str(error))


def unasked_output(store: str, real: str = "") -> OutputEvidence:
    """Say where a store lies without touching it; `real` is its path without links, where known."""
    mount = find_mount(real or store)
    if mount is None:
        return OutputEvidence(store)
    return OutputEvidence(store, mount=mount.describe())


def find_mount(path: str) -> Mount | None:
    """Find the mount of a path, as this process sees it."""
    return mount_of(path, known_mounts())


def look_at_server_process(spool: SpoolEvidence) -> ProcessEvidence | None:
    """Look at the server's process, where its number means the same to us."""
    server = spool.server
    if server is None or server.host != _HOST or not server.pid:
        return None
    if has_open(server.pid, f"{spool.path}/{SERVER_LOCK}") is False:
        return None  # in another container the number is somebody else's
    return look_at_process(server.pid, "server")


def _look_at_server(status: RunStatus | None, spool: SpoolEvidence | None) -> ServerEvidence | None:
    """Look at the server from outside, without a word over HTTP."""
    process = look_at_server_process(spool) if spool else None
    if status is None or process is None:
        return None
    return ServerEvidence(status.server, NOT_ASKED, process=process)


def _several(status: RunStatus | None) -> list[ServerState]:
    """Return the servers that a run hopes for, if there is more than one."""
    hoped = [one for one in status.servers if one.hoped_for] if status else []
    return hoped if len(hoped) > 1 else []


def _one_server(state: ServerState, before: Heartbeat | None) -> OneServerEvidence:
    spool = look_at_spool(state.spool, before)
    process = look_at_server_process(spool)
    server = ServerEvidence(state.url, NOT_ASKED, process=process)
    return OneServerEvidence(state.state, state.in_flight, server, spool, state.message)


def _spool(view: SpoolView, path: str, before: Heartbeat | None) -> SpoolEvidence:
    server, unreadable = _server(view)
    scan = view.scan()
    beat = view.heartbeat()
    usage = os.statvfs(path)
    return SpoolEvidence(
        path,
        server_lock_held=view.server_alive(),
        client_lock_held=is_held(Path(path) / CLIENT_LOCK),
        server=_announcement(server) if server else None,
        heartbeat=_beat(beat, before) if beat else None,
        finished=_files(scan.finished.values()),
        partial=_files(scan.partial.values()),
        errors=_files(scan.errors.values()),
        foreign=len(scan.foreign),
        headroom_bytes=view.headroom_bytes(),
        reusable_bytes=scan.free_bytes,
        total_bytes=usage.f_blocks * usage.f_frsize,
        unreadable=unreadable,
        relay=str(read_holder(Path(path) / SERVER_LOCK).get("relay", "")),
    )


def _server(view: SpoolView) -> tuple[ServerInfo | None, str]:
    try:
        return view.server(), ""
    except NoServerError as error:
        return None, str(error)


def _announcement(info: ServerInfo) -> AnnouncementEvidence:
    return AnnouncementEvidence(
        info.instance, info.capture_hash, info.engine, info.pid, info.host, info.log_path
    )


def _beat(beat: Heartbeat, before: Heartbeat | None) -> HeartbeatEvidence:
    return HeartbeatEvidence(
        age_seconds=max(0.0, (time.monotonic_ns() - beat.monotonic_ns) / 1e9),
        forwards=beat.forwards,
        rows=beat.rows,
        queue_depth=beat.queue_depth,
        advanced=None if before is None else beat != before,
    )


def _heartbeat(path: str) -> Heartbeat | None:
    try:
        return SpoolView(Path(path)).heartbeat() if path else None
    except (SpoolMissingError, SpoolForeignError, OSError):
        return None


def _files(files: Iterable[SpoolFile]) -> tuple[SpoolFileEvidence, ...]:
    now = time.time()
    return tuple(
        SpoolFileEvidence(
            file.rid.run,
            file.rid.sample,
            max(0.0, now - file.modified_seconds),
            file.allocated_bytes,
        )
        for file in files
    )


def _is_worker(pid: int, supervisor: int, stacks: str) -> bool | None:
    """Tell whether a number is still the worker's; None where that cannot be told."""
    if supervisor and parent_of(pid) == supervisor:
        return True
    return has_open(pid, stacks)


def _read(page: Path) -> tuple[RunStatus | None, str]:
    try:
        return parse_status(read_page(page)), ""
    except (OSError, ValueError) as error:
        return None, f"status page {page}: {error}"


def _is_foreign(namespace: str) -> bool:
    """Tell whether process ids of a namespace are others here: shared memory may be shared."""
    return bool(namespace) and namespace != pid_namespace()


def pid_namespace() -> str:
    """Return what identifies the namespace in which this process's numbers count."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # no path


def boot_id() -> str:
    """Return what identifies this start of the machine."""
    descriptor = os.open(_BOOT, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 100).decode().strip()
    finally:
        os.close(descriptor)

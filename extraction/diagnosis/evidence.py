"""What is known of a run, its processes, its server, its spool and its disk, at one moment.

Plain facts, collected by `collect` and judged by `judge`. Ages are in seconds before that moment,
so that nothing here depends on a clock. What could not be looked at is None, and says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

NOT_ASKED: Final = "not asked"
"""Stands for a server's health where nobody asked."""


@dataclass(frozen=True, slots=True)
class ThreadEvidence:
    """One thread, as /proc shows it."""

    tid: int
    name: str
    state: str
    """A letter: R runs, S sleeps, D waits uninterruptibly, T is stopped, Z is dead."""
    wait_channel: str | None = None
    """The kernel function it waits in; None where it runs, or where we may not look."""
    syscall: str | None = None
    file: str | None = None
    """What the system call's descriptor names."""
    mount: str | None = None
    """Where `file` lies: mount point, type and source."""
    cpu_share: float = 0.0
    """Of one core, since the look before."""
    unreadable: str = ""
    """What of this the kernel forbids to look at."""

    def describe(self) -> str:
        """Say all that is known, in one line."""
        text = f"thread {self.tid} ({self.name}) is in state {self.state}"
        text += f", wait channel {self.wait_channel}" if self.wait_channel else ""
        text += f", system call {self.syscall}" if self.syscall else ""
        text += f", file {self.file}" if self.file else ""
        text += f", on {self.mount}" if self.mount else ""
        return text + (f" ({self.unreadable})" if self.unreadable else "")


@dataclass(frozen=True, slots=True)
class StackEvidence:
    """The Python stack of one thread, innermost frame first."""

    thread: str
    frames: tuple[str, ...]
    """Such as `hsstore/files.py:71 write_durably`."""


@dataclass(frozen=True, slots=True)
class ProcessEvidence:
    """One process."""

    pid: int
    role: str
    """`worker`, `supervisor` or `server`."""
    alive: bool
    threads: tuple[ThreadEvidence, ...] = ()
    stacks: tuple[StackEvidence, ...] = ()
    stacks_unreadable: str = ""
    unreadable: str = ""
    """Why nothing is known of its threads."""

    @property
    def uninterruptible(self) -> tuple[ThreadEvidence, ...]:
        """Threads that wait in the kernel and cannot be killed."""
        return tuple(thread for thread in self.threads if thread.state == "D")

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger holds the whole process."""
        return bool(self.threads) and all(thread.state in "Tt" for thread in self.threads)

    @property
    def killed(self) -> bool:
        """Whether it was killed, and stays because of a thread in the kernel."""
        states = {thread.tid: thread.state for thread in self.threads}
        return states.get(self.pid) in {"Z", "X"} and len(states) > 1


@dataclass(frozen=True, slots=True)
class StageEvidence:
    """A stage of the pipeline, as the worker published it."""

    name: str
    items: int
    oldest_age_seconds: float | None = None
    detail: str = ""
    """The file, the sample or the request of the oldest item."""


@dataclass(frozen=True, slots=True)
class StatusEvidence:
    """What the run says of itself on its status page."""

    run: str
    store: str
    phase: str
    held: bool
    """A live supervisor holds the page."""
    updated_age_seconds: float
    """Of the page: it stands still when the worker's event loop does."""
    progress_age_seconds: float
    """Since bytes were moved or committed, or the server's heartbeat advanced."""
    exit_code: int | None = None
    message: str = ""
    samples: int = 0
    done: int = 0
    """Complete or given up."""
    in_flight: int = 0
    only_busy: str = ""
    """The server's reason for capturing nothing, where it has given no dump for many requests."""
    at_risk: tuple[int, ...] = ()
    """Samples that were asked for, and that neither a bit nor a dump in the spool keeps."""
    stages: tuple[StageEvidence, ...] = ()
    last_errors: tuple[str, ...] = ()
    server: str = ""
    spool: str = ""
    store_real: str = ""
    """The store's path without symbolic links; empty where the run did not say it."""
    copied: bool = False
    """Not from its page but from its copy beside the store: no stages then, they pass too fast."""
    unserved: bool = False
    """It needs a server, and has none to ask or to wait for: all were refused, or taken out."""

    def stage(self, name: str) -> StageEvidence | None:
        """Return a stage by its name."""
        return next((stage for stage in self.stages if stage.name == name), None)


@dataclass(frozen=True, slots=True)
class SpoolFileEvidence:
    """A request's file in the spool."""

    run: str
    sample: int
    age_seconds: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HeartbeatEvidence:
    """The server's last beat."""

    age_seconds: float
    forwards: int
    rows: int
    queue_depth: int
    advanced: bool | None = None
    """Whether it advanced while we looked; None when it was looked at once."""


@dataclass(frozen=True, slots=True)
class AnnouncementEvidence:
    """What the server says of itself in `server.json`."""

    instance: str
    capture_hash: str
    engine: str
    pid: int
    host: str
    log_path: str


@dataclass(frozen=True, slots=True)
class SpoolEvidence:
    """The spool and what lies in it."""

    path: str
    server_lock_held: bool = False
    client_lock_held: bool = False
    server: AnnouncementEvidence | None = None
    heartbeat: HeartbeatEvidence | None = None
    finished: tuple[SpoolFileEvidence, ...] = ()
    partial: tuple[SpoolFileEvidence, ...] = ()
    errors: tuple[SpoolFileEvidence, ...] = ()
    foreign: int = 0
    headroom_bytes: int | None = None
    """What new dumps may still take, files that can be reused not counted."""
    reusable_bytes: int = 0
    total_bytes: int = 0
    missing: bool = False
    unreadable: str = ""
    relay: str = ""
    """URL of the relay whose spool is mirrored here; empty: the server is on this machine."""


@dataclass(frozen=True, slots=True)
class GpuEvidence:
    """One GPU of this machine."""

    name: str
    busy_percent: int | None
    """None where the driver does not tell it: of a GPU that is cut into parts (MIG), for one."""
    memory_used_bytes: int | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class ServerEvidence:
    """The server, asked over HTTP and looked at from outside."""

    url: str
    health: str
    """`ok`, `refused`, `no answer`, `status 503` and the like, or `NOT_ASKED`."""
    detail: str = ""
    process: ProcessEvidence | None = None
    log_tail: tuple[str, ...] = ()
    log_unreadable: str = ""
    gpus: tuple[GpuEvidence, ...] = ()
    gpus_unreadable: str = ""


@dataclass(frozen=True, slots=True)
class OneServerEvidence:
    """One of several servers of a run, as far as the run hopes for it."""

    state: str
    """What the run says of it: `waiting`, `up` or `parked`."""
    in_flight: int
    server: ServerEvidence
    spool: SpoolEvidence
    message: str = ""
    """Why it is not asked."""


@dataclass(frozen=True, slots=True)
class OutputEvidence:
    """The store and its file system, looked at by a child process with a deadline."""

    path: str
    mount: str = ""
    """Mount point, type and source."""
    read_answered: bool | None = None
    """Looking (statvfs, stat, reading zarr.json) came back in time; None where nobody looked."""
    write_answered: bool | None = None
    """Whether creating a file without a name came back in time; None where it was not tried."""
    deadline_seconds: float = 0.0
    last_step: str = ""
    """What the child was doing when the time was over."""
    error: str = ""
    """What looking was answered with, other than success."""
    write_error: str = ""
    write_untried: str = ""
    free_bytes: int | None = None
    total_bytes: int = 0
    free_inodes: int | None = None
    """None also where the file system does not count them."""
    read_only: bool = False
    exists: bool | None = None
    unreadable_plan: str = ""
    """Why the store's metadata cannot be used."""
    capture_hash: str = ""
    samples: int = 0
    complete: int = 0
    failed: int = 0
    last_result: str = ""
    """How the last recorded run ended; empty where it did not."""
    newest_write_age_seconds: float | None = None
    """Since anything was written into the store's states or bits; None where that is unknown."""
    stage: str = ""
    """Where a run's bytes lie on their way to an object store."""
    stage_free_bytes: int | None = None
    """None where its disk did not answer."""
    claims: tuple[str, ...] = ()
    """Who holds spans: run, process and host."""
    claimed_elsewhere: str = ""
    """A host whose run holds spans, and whose life cannot be told from here."""


@dataclass(frozen=True, slots=True)
class StallEvidence:
    """The last stall report of a run's own watchdog."""

    verdict: str
    """One of the doctor's list, or of that of another version."""
    summary: str
    lines: tuple[str, ...]
    advice: str
    reported_age_seconds: float
    lasts: bool
    """Nothing has moved since."""


@dataclass(frozen=True, slots=True)
class CopyEvidence:
    """What a run has left beside its store: of another host, of a hidden page, or of an ended run."""

    run: str
    host: str
    pid: int
    elsewhere: bool
    """On another host or in another container: its process and shared memory are not to be seen."""
    age_seconds: float
    """Since it was written, by this host's clock."""
    exit_code: int | None = None
    message: str = ""
    stall: StallEvidence | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of it. A part is None when it was not looked at, or not found."""

    status: StatusEvidence | None = None
    worker: ProcessEvidence | None = None
    spool: SpoolEvidence | None = None
    server: ServerEvidence | None = None
    output: OutputEvidence | None = None
    copy: CopyEvidence | None = None
    servers: tuple[OneServerEvidence, ...] = ()
    """Where a run has several: each with its spool; `spool` and `server` are the first one's then."""
    notes: tuple[str, ...] = field(default=())
    """What else is worth saying, such as what could not be found."""

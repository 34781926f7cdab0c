"""What the rules ask of the evidence: small questions, each answered in one place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from extraction.diagnosis.evidence import NOT_ASKED
from extraction.diagnosis.stacks import is_idle, is_main
from extraction.diagnosis.waits import how_it_hangs, is_disk_wait
from hsstore.location import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from extraction.diagnosis.evidence import (
        Evidence,
        OutputEvidence,
        SpoolFileEvidence,
        StageEvidence,
        ThreadEvidence,
    )

STALE_SECONDS: Final = 10.0
"""A worker publishes five times a second: a page older than this means that its loop hangs."""
FULL_BYTES: Final = 1 << 20
"""With less than this left a file system or a spool is full, for what we write."""
FULL_INODES: Final = 16
DISK, FSYNC = "disk:", "disk:fsync"
"""How the stages begin that are one call into the file system each."""
CLIENT_STAGES: Final = ("check", "write", "commit")
WAITS: Final = "waiting for server"
"""The phase until the server is announced, and healthy."""
REFUSED: Final = 3
OUTPUT_ERROR: Final = 74
_FULL_WORDS: Final = ("no space left", "quota", "inodes", "free of")


class Case:
    """The evidence and the questions about it."""

    def __init__(self, evidence: Evidence, stalled_seconds: float) -> None:
        self.evidence = evidence
        self.stalled_seconds = stalled_seconds
        self.status = evidence.status
        self.worker = evidence.worker
        self.spool = evidence.spool
        self.server = evidence.server
        self.output = evidence.output

    # --- the run ------------------------------------------------------------------------------

    @property
    def store(self) -> str:
        """The store's path as it is known."""
        if self.output is not None:
            return self.output.path
        return self.status.store if self.status else ""

    @property
    def phase(self) -> str:
        """What the run says that it is doing."""
        return self.status.phase if self.status else ""

    @property
    def client_alive(self) -> bool:
        """Whether a process works on the store, also one that hangs."""
        if self.status is not None and self.status.exit_code is not None:
            return False
        if self.worker is not None:
            return self.worker.alive and not self.worker.killed
        return self.status is not None and self.status.held

    @property
    def stalled(self) -> bool:
        """Whether nothing has moved for too long, as far as anybody can tell."""
        return self._still_for(self.stalled_seconds)

    @property
    def progress_age_seconds(self) -> float:
        """Since the last progress: by the run's own word, or else by what the store shows."""
        if self.status is not None:
            return self.status.progress_age_seconds
        newest = self.output.newest_write_age_seconds if self.output else None
        return math.inf if newest is None else newest

    @property
    def page_stale(self) -> bool:
        """Whether the worker's event loop stands still."""
        limit = min(STALE_SECONDS, self.stalled_seconds)
        return self.status is not None and self.status.updated_age_seconds > limit

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self.status.in_flight if self.status else 0

    @property
    def only_busy(self) -> str:
        """Why the server captures nothing, by its own word; empty where it captures."""
        return self.status.only_busy if self.status else ""

    @property
    def last_words(self) -> str:
        """How the last run ended, if it said so."""
        if self.status is not None and self.status.exit_code is not None:
            return self.status.message
        copy = self.evidence.copy
        if copy is not None and copy.exit_code is not None:
            return copy.message
        return self.output.last_result if self.output else ""

    @property
    def stuck_stage(self) -> StageEvidence | None:
        """The client's own stage that has had its oldest item for too long."""
        stages = self.status.stages if self.status else ()
        late = [stage for stage in stages if self._is_late(stage)]
        ours = [stage for stage in late if stage.name in CLIENT_STAGES]
        return max(ours, key=lambda stage: stage.oldest_age_seconds or 0.0, default=None)

    @property
    def late_disk_call(self) -> StageEvidence | None:
        """The call into the file system that has not returned for too long.

        A page that stands still says nothing of it: the call may have ended since.
        """
        return next(iter(self._disk_calls(self.stalled_seconds)), None)

    @property
    def waits_for_fsync(self) -> bool:
        """Whether all that is late is fsync, which takes as long as the data before it."""
        calls = self._disk_calls(self.stalled_seconds)
        return bool(calls) and all(one.name == FSYNC for one in calls)

    def _still_for(self, seconds: float) -> bool:
        """Tell whether nothing moves; one quick call that hangs counts though the server goes on."""
        quick = [one for one in self._disk_calls(seconds) if one.name != FSYNC]
        return self.progress_age_seconds > seconds or bool(quick)

    def _disk_calls(self, seconds: float) -> list[StageEvidence]:
        stages = self.status.stages if self.status and not self.page_stale else ()
        return [one for one in stages if one.name.startswith(DISK) and _is_older(one, seconds)]

    def _is_late(self, stage: StageEvidence) -> bool:
        return _is_older(stage, self.stalled_seconds)

    # --- how the client hangs -----------------------------------------------------------------

    def main_hang(self) -> str:
        """Tell a deadlock of the main thread from an endless loop."""
        if self.worker is None:
            return "its threads cannot be seen"
        main = next((one for one in self.worker.threads if one.tid == self.worker.pid), None)
        stack = next((one for one in self.worker.stacks if is_main(one)), None)
        return how_it_hangs(main, stack.frames if stack else ())

    def stage_hang(self) -> str:
        """Tell a deadlock of a helper thread from an endless loop."""
        if self.worker is None:
            return "its threads cannot be seen"
        # Not the main thread, whose loop runs on; a waiting thread uses no processor at all.
        helpers = [one for one in self.worker.threads if one.tid != self.worker.pid]
        busiest = max(helpers, key=lambda one: one.cpu_share, default=None)
        stacks = [one.frames for one in self.worker.stacks if not is_main(one) and not is_idle(one)]
        return how_it_hangs(busiest, stacks[0] if stacks else ())

    # --- the disk -----------------------------------------------------------------------------

    @property
    def output_mount(self) -> str:
        """Mount point, type and source of the store."""
        return self.output.mount if self.output else ""

    def blocked_by(self) -> str | None:
        """Say what shows that the disk does not answer; None where nothing does."""
        output = self.output
        if output is not None and self._probe_proves(output):
            return self._probe_text(output)
        if self.worker is not None and self.worker.killed:
            thread = next(iter(self.worker.uninterruptible), None)
            return (
                None
                if thread is None
                else f"the worker was killed and stays: {self._where(thread)}"
            )
        if not self.stalled:
            return None
        threads = self.worker.threads if self.worker else ()
        thread = next((one for one in threads if self._waits_for_disk(one)), None)
        if thread is not None:
            return self._where(thread)
        call = self.late_disk_call
        if call is None:
            return None
        kind, age = call.name.removeprefix(DISK), f"{call.oldest_age_seconds or 0:.0f} s"
        takes = f"takes {age}" if call.name == FSYNC else f"has not returned for {age}"
        return f"{kind} of {call.detail} {takes}"

    def refused_by(self) -> str | None:
        """Say what shows that the disk takes no writes; None where it does, or moves on."""
        if self.client_alive and (not self.stalled or is_url(self.store)):
            return None
        if self.status is not None and self.status.exit_code == OUTPUT_ERROR:
            return self.status.message
        return _refusal(self.output) if self.output and self.output.exists is not False else None

    def is_full(self, why: str) -> bool:
        """Tell full from broken."""
        text = why.lower()
        return "read-only" not in text and any(word in text for word in _FULL_WORDS[:3])

    def _probe_proves(self, output: OutputEvidence) -> bool:
        """Whether a probe did not come back, and the run, too, has moved nothing for long."""
        answered = False not in {output.read_answered, output.write_answered}
        if answered or (self.client_alive and is_url(output.path)):  # `remote` says why
            return False
        quiet_seconds = min(self.stalled_seconds, 2 * output.deadline_seconds)
        return not self.client_alive or self._still_for(quiet_seconds)

    def _probe_text(self, output: OutputEvidence) -> str:
        threads = self.worker.threads if self.worker else ()
        thread = next((one for one in threads if self._waits_for_disk(one)), None)
        kind = "to look at it" if output.read_answered is False else "to write to it"
        text = f"an attempt {kind} did not come back in {output.deadline_seconds:.0f} s"
        text += f" ({output.last_step})" if output.last_step else ""
        return f"{self._where(thread)}; {text}" if thread else text

    def _waits_for_disk(self, thread: ThreadEvidence) -> bool:
        """Whether a thread waits in a file of the store, or in the kernel for one we can't see."""
        if thread.state not in "DS":
            return False
        store = self.store
        if thread.file and thread.file.startswith("/"):
            same_mount = bool(thread.mount) and thread.mount == self.output_mount
            real = self.status.store_real if self.status else ""
            return same_mount or thread.file.startswith(tuple(filter(None, (store, real))))
        return thread.state == "D" or is_disk_wait(thread.wait_channel)

    def other_disk(self) -> str:
        """Say in which file that is not the store's a thread waits; empty where none does."""
        for thread in self.worker.threads if self.worker else ():
            waits = thread.state == "D" or is_disk_wait(thread.wait_channel)
            file = thread.file or ""
            if waits and file.startswith("/") and not self._waits_for_disk(thread):
                return thread.describe()
        return ""

    def _where(self, thread: ThreadEvidence) -> str:
        """Say in what a thread waits: by the kernel, or else by what the client says it does."""
        call = self.late_disk_call
        name = thread.file or (call.detail if call is not None else "")
        text = f"thread {thread.tid} waits in state {thread.state}"
        text += f" in {thread.syscall}" if thread.syscall else ""
        text += f" of {name}" if name else ""
        mount = thread.mount or self.output_mount
        text += f" on {mount}" if mount else ""
        return text + (f" ({thread.wait_channel})" if thread.wait_channel else "")

    # --- the store ----------------------------------------------------------------------------

    @property
    def store_finished(self) -> bool:
        """Whether nothing is pending."""
        output = self.output
        if output is not None and output.samples:
            return output.complete + output.failed >= output.samples
        return self.status is not None and self.status.exit_code in {0, 1}

    def mismatch(self) -> str | None:
        """Say why store and server do not belong together."""
        if self.output is not None and self.output.unreadable_plan:
            return self.output.unreadable_plan
        if self.status is not None and self.status.exit_code == REFUSED:
            return self.status.message
        ours = self.output.capture_hash if self.output else ""
        server = self.spool.server if self.spool else None
        if self.client_alive and not self.stalled:
            return None
        if ours and server is not None and server.capture_hash != ours:
            return (
                f"the server captures {server.capture_hash[:16]}, the store holds {ours[:16]} "
                "(capture hash)"
            )
        return None

    # --- spool and server ---------------------------------------------------------------------

    @property
    def spool_path(self) -> str:
        """The spool as it is known."""
        if self.spool is not None:
            return self.spool.path
        return self.status.spool if self.status else ""

    @property
    def spool_is_full(self) -> bool:
        """Whether the next dump would find no room."""
        spool = self.spool
        if spool is None or spool.headroom_bytes is None:
            return False
        largest = max((file.size_bytes for file in spool.finished), default=0)
        return spool.headroom_bytes + spool.reusable_bytes < max(FULL_BYTES, largest)

    @property
    def unread_dumps(self) -> tuple[SpoolFileEvidence, ...]:
        """Finished dumps of this run that it should have taken long ago.

        Those that are appended stay until their block is committed: they are not unread.
        """
        spool = self.spool
        if self.status is None or spool is None:
            return ()
        ours = sorted(self.own(spool.finished), key=lambda file: -file.age_seconds)
        held = self.status.stage("give-back")
        unread = ours[held.items if held else 0 :]
        return tuple(file for file in unread if file.age_seconds > self.stalled_seconds)

    def own(self, files: Iterable[SpoolFileEvidence]) -> list[SpoolFileEvidence]:
        """Return the run's files of samples; handshake and canary take numbers beyond them."""
        status = self.status
        if status is None:
            return []
        samples = status.samples or (self.output.samples if self.output else 0)
        return [one for one in files if one.run == status.run and one.sample < samples]

    @property
    def server_loading(self) -> bool:
        """Whether a server holds the spool and has not announced itself yet."""
        return self.spool is not None and self.spool.server_lock_held and self.spool.server is None

    @property
    def server_awaited(self) -> bool:
        """Whether a server has announced itself, and the run waits until it is healthy."""
        held = self.spool is not None and self.spool.server_lock_held
        return held and not self.server_stopped and self.phase == WAITS

    @property
    def server_absent(self) -> str:
        """Why there is no server; empty where there is one, or its spool may not be looked at."""
        spool = self.spool
        if spool is not None and spool.missing:
            return f"the spool {spool.path} does not exist"
        if spool is not None and not spool.unreadable and not spool.server_lock_held:
            return f"the spool {spool.path} is held by no server"
        if self.server is not None and self.server.health == "refused" and not self.server_loading:
            return f"{self.server.url} refuses connections"
        return ""

    @property
    def server_pid(self) -> int:
        """As the server told it."""
        return self.server.process.pid if self.server and self.server.process else 0

    @property
    def server_stopped(self) -> bool:
        """Whether the server's process is stopped by a signal."""
        process = self.server.process if self.server else None
        return process is not None and process.stopped

    def server_hangs(self) -> str | None:
        """Say what shows that the server does nothing though it should."""
        if self.server_stopped:
            return f"its process {self.server_pid} is stopped by a signal"
        if self.server is not None and self.server.health not in {"ok", "refused", NOT_ASKED}:
            return f"{self.server.url} is asked for its health: {self.server.health}"
        return None if self._all_answered else self._stands_still()

    def _stands_still(self) -> str | None:
        beat = self.spool.heartbeat if self.spool else None
        if beat is None:
            never = f"it has computed nothing yet, and {self.in_flight} requests wait"
            return never if self.in_flight else None
        if beat.age_seconds <= self.stalled_seconds or beat.advanced:
            return None
        partial = len(self.spool.partial) if self.spool else 0
        if self.in_flight or partial or beat.queue_depth:
            return f"its heartbeat stands still for {beat.age_seconds:.0f} s with work to do"
        return None

    @property
    def _all_answered(self) -> bool:
        """Whether the server has answered all that it was asked for, as the client says."""
        answered = self.status.stage("answered") if self.status else None
        return answered is not None and answered.items >= self.in_flight > 0


def _is_older(stage: StageEvidence, seconds: float) -> bool:
    return bool(stage.items) and (stage.oldest_age_seconds or 0.0) > seconds


def _refusal(output: OutputEvidence) -> str | None:
    if output.read_only:
        return f"{output.mount or output.path} is mounted read-only"
    if output.write_error:
        return output.write_error
    if output.free_bytes is not None and output.free_bytes < FULL_BYTES:
        return f"no space left: {output.free_bytes:,} of {output.total_bytes:,} bytes are free"
    if output.free_inodes is not None and output.free_inodes < FULL_INODES:
        return f"no inodes left: {output.free_inodes} are free"
    return output.error or None

"""The evidence in lines for people, and what a kill would cost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from extraction.diagnosis.elsewhere import unseen_host
from extraction.diagnosis.finding import span
from extraction.diagnosis.stacks import is_idle, shorten
from extraction.diagnosis.waits import is_disk_wait
from hsstore.report import KillCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from extraction.diagnosis.case import Case
    from extraction.diagnosis.evidence import (
        CopyEvidence,
        Evidence,
        GpuEvidence,
        OutputEvidence,
        ProcessEvidence,
        ServerEvidence,
        SpoolEvidence,
        SpoolFileEvidence,
        StatusEvidence,
        ThreadEvidence,
    )

BUSY_SHARE = 0.1
"""Of a core: threads that use more are shown."""
NUMBERS = 20
"""So many samples are named at most in a line."""


def describe(evidence: Evidence) -> Iterator[str]:
    """Yield what was seen, and what could not be seen: process, progress, spool, server, disk."""
    if evidence.worker is not None:
        yield from _process(evidence.worker)
    if evidence.copy is not None:
        yield from _copy(evidence.copy)
    if evidence.status is not None:
        yield from _status(evidence.status)
    yield from _servers(evidence)
    if evidence.output is not None:
        yield from _output(evidence.output)
    if evidence.worker is not None:
        yield from _stacks(evidence.worker)
    yield from evidence.notes


def kill_cost(case: Case) -> KillCost:
    """Say what a kill would cost now."""
    status, spool = case.status, case.spool
    kept = _samples(case.own(spool.finished if spool else ()))
    partial = _samples(case.own(spool.partial if spool else ()))
    again = tuple(sorted(({*(status.at_risk if status else ())} | {*partial}) - {*kept}))
    in_flight = case.in_flight
    if not case.client_alive:
        text = "no committed sample is lost"
        text = text if unseen_host(case) else f"nothing runs; {text}"
    else:
        text = "nothing committed is lost"
        text += f"; asked for again: samples {numbers(again)}" if again else ""
        more = max(0, in_flight - len(again))
        text += f"; {more} more requests in flight are asked for again" if more else ""
    text += f"; dumps kept in the spool for the next run: samples {numbers(kept)}" if kept else ""
    return KillCost(text=text, asked_again=again, in_flight=in_flight, kept_in_spool=kept)


def numbers(samples: Sequence[int]) -> str:
    """List numbers, not too many.

    >>> numbers([3, 5])
    '3, 5'
    """
    text = ", ".join(map(str, samples[:NUMBERS]))
    more = len(samples) - NUMBERS
    return f"{text} and {more} more" if more > 0 else text


def _samples(files: Iterable[SpoolFileEvidence]) -> tuple[int, ...]:
    return tuple(sorted({file.sample for file in files}))


def _process(process: ProcessEvidence) -> Iterator[str]:
    name = f"{process.role} (pid {process.pid})"
    if not process.alive:
        yield f"{name}: not running"
        return
    if process.unreadable:
        yield f"{name}: running; {process.unreadable}"
        return
    states = Counter(thread.state for thread in process.threads)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    yield f"{name}: {len(process.threads)} threads: {counts}"
    told = process.threads[:1] if process.stopped else process.threads  # then all say the same
    for thread in told:
        if _is_telling(thread):
            busy = f", {thread.cpu_share:.0%} of a core" if thread.cpu_share > BUSY_SHARE else ""
            yield f"{process.role}: {thread.describe()}{busy}"
    hidden = Counter(thread.unreadable for thread in process.threads if thread.unreadable)
    for reason, count in hidden.items():
        yield f"{process.role}: of {count} threads {reason}"


def _is_telling(thread: ThreadEvidence) -> bool:
    """Whether a thread does more than wait for work."""
    file = thread.file or ""
    in_a_file = file.startswith("/") and not file.startswith("/dev/")
    blocked = thread.state in "DTt" or is_disk_wait(thread.wait_channel)
    return blocked or in_a_file or thread.cpu_share > BUSY_SHARE


def _stacks(process: ProcessEvidence) -> Iterator[str]:
    if process.stacks_unreadable:
        yield f"{process.role}: {process.stacks_unreadable}"
    idle = sum(is_idle(stack) for stack in process.stacks)
    for stack in process.stacks:
        if not is_idle(stack):
            yield f"stack of {process.role} thread {stack.thread}: {shorten(stack.frames, 6)}"
    if idle:
        yield f"{idle} threads of the {process.role}'s pools are idle"


def _copy(copy: CopyEvidence) -> Iterator[str]:
    where = f"on {copy.host}, not here" if copy.elsewhere else f"on this host, {copy.host}"
    yield (
        f"run {copy.run} (pid {copy.pid} {where}): by its copy beside the store, written "
        f"{span(copy.age_seconds)} ago by this host's clock"
    )
    if copy.exit_code is not None:
        yield f"run {copy.run} ended with {copy.exit_code}: {copy.message}"
    stall = copy.stall
    if stall is not None and copy.exit_code is None:
        state = "it lasts" if stall.lasts else "it is over"
        yield (
            f"its watchdog reported a stall {span(stall.reported_age_seconds)} ago ({state}): "
            f"{stall.verdict}: {stall.summary}"
        )
        if stall.lasts:
            yield from (f"{copy.host}: {line}" for line in stall.lines)


def _status(status: StatusEvidence) -> Iterator[str]:
    held = "its supervisor lives" if status.held else "its supervisor is dead"
    seen = f"{held}; page written {status.updated_age_seconds:.1f} s ago"
    yield f"run {status.run}: {status.phase}; {'by that copy' if status.copied else seen}"
    yield (
        f"last progress {status.progress_age_seconds:.1f} s ago: {status.done:,} of "
        f"{status.samples:,} samples done, {status.in_flight} in flight"
    )
    for stage in status.stages:
        if stage.items:
            age = stage.oldest_age_seconds
            oldest = f", the oldest for {age:.1f} s" if age is not None else ""
            items = "1 item" if stage.items == 1 else f"{stage.items} items"
            which = f": {stage.detail}" if stage.detail else ""
            yield f"stage {stage.name}: {items}{oldest}{which}"
    if status.message:
        yield f"it says: {status.message}"
    for error in status.last_errors:
        if error != status.message:
            yield f"earlier: {error}"


def _servers(evidence: Evidence) -> Iterator[str]:
    if not evidence.servers and evidence.spool is not None:
        yield from _spool(evidence.spool)
    if not evidence.servers and evidence.server is not None:
        yield from _server(evidence.server)
    for one in evidence.servers:
        why = f": {one.message}" if one.message else ""
        yield f"one of the servers is {one.state}, {one.in_flight} in flight{why}"
        yield from _server(one.server)
        yield from _spool(one.spool)


def _spool(spool: SpoolEvidence) -> Iterator[str]:
    if spool.missing or spool.unreadable:
        yield f"spool {spool.path}: {spool.unreadable or 'does not exist'}"
        return
    holders = f"server {_held(spool.server_lock_held)}, client {_held(spool.client_lock_held)}"
    relayed = f", mirrored from the relay {spool.relay}" if spool.relay else ""
    yield f"spool {spool.path}: {holders}{relayed}"
    for name, files in (
        ("finished", spool.finished),
        ("unfinished", spool.partial),
        ("failed", spool.errors),
    ):
        if files:
            oldest = max(file.age_seconds for file in files)
            samples = numbers(sorted({file.sample for file in files}))
            yield f"spool: {len(files)} {name} dumps, oldest {oldest:.0f} s, samples {samples}"
    if spool.foreign:
        yield f"spool: {spool.foreign} files that are not of this protocol"
    if spool.headroom_bytes is not None:
        yield (
            f"spool: room for {spool.headroom_bytes:,} bytes more, {spool.reusable_bytes:,} in "
            f"files to be reused; its file system has {spool.total_bytes:,}"
        )
    if spool.heartbeat is not None:
        beat = spool.heartbeat
        moved = {None: "", True: ", advancing", False: ", standing still"}[beat.advanced]
        yield (
            f"server heartbeat: {beat.age_seconds:.1f} s ago{moved}; {beat.forwards:,} forwards, "
            f"{beat.rows:,} rows, queue {beat.queue_depth}"
        )


def _held(held: bool) -> str:  # noqa: FBT001
    return "alive" if held else "absent"


def _server(server: ServerEvidence) -> Iterator[str]:
    detail = f" ({server.detail})" if server.detail else ""
    yield f"server {server.url}: health {server.health}{detail}"
    if server.process is not None:
        yield from _process(server.process)
    if server.log_unreadable:
        yield f"server log: {server.log_unreadable}"
    for line in server.log_tail:
        yield f"server log: {line}"
    yield from map(_gpu, server.gpus)
    if server.gpus_unreadable:
        yield f"GPUs: {server.gpus_unreadable}"


def _gpu(gpu: GpuEvidence) -> str:
    busy = "load not told" if gpu.busy_percent is None else f"{gpu.busy_percent} % busy"
    if gpu.memory_used_bytes is None or gpu.memory_bytes is None:
        return f"GPU {gpu.name}: {busy}, memory not told"
    used, total = gpu.memory_used_bytes / 1e9, gpu.memory_bytes / 1e9
    return f"GPU {gpu.name}: {busy}, {used:.1f} of {total:.1f} GB used"


def _output(output: OutputEvidence) -> Iterator[str]:
    yield f"output {output.path}" + (f" on {output.mount}" if output.mount else "")
    yield from _answers(output)
    if output.free_bytes is not None:
        inodes = "" if output.free_inodes is None else f", {output.free_inodes:,} inodes free"
        mode = ", read-only" if output.read_only else ""
        yield f"output: {output.free_bytes:,} of {output.total_bytes:,} bytes free{inodes}{mode}"
    if output.stage:
        room = output.stage_free_bytes
        free = "its disk did not answer" if room is None else f"{room:,} bytes free"
        yield f"stage {output.stage}: {free}"
    for error in filter(None, (output.error, output.write_error, output.unreadable_plan)):
        yield f"output: {error}"
    if output.samples:
        pending = output.samples - output.complete - output.failed
        yield (
            f"store: {output.complete:,} of {output.samples:,} samples complete, "
            f"{output.failed:,} failed, {pending:,} pending"
        )
    for claim in output.claims:
        yield f"store is claimed by {claim}"


def _answers(output: OutputEvidence) -> Iterator[str]:
    if False in {output.read_answered, output.write_answered}:
        kind = "reading" if output.read_answered is False else "writing"
        limit = f"{output.deadline_seconds:.0f} s"
        yield f"output: {kind} did not come back within {limit}, at: {output.last_step}"
    elif output.write_answered:
        yield "output: answers reads and writes"
    elif output.read_answered and not output.error:
        yield f"output: answers reads; writing was not tried: {output.write_untried}"

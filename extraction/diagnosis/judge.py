"""One verdict from the evidence: a pure function, an ordered list of rules, the first that holds.

The order is that of a person who looks for the cause: the disk that does not answer explains all
that follows, so it comes first; then the client, then the spool, then the server.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from extraction.diagnosis.case import WAITS, Case
from extraction.diagnosis.describe import describe, kill_cost
from extraction.diagnosis.elsewhere import lost_elsewhere, seen_in_a_copy
from extraction.diagnosis.finding import RERUN, Finding
from extraction.diagnosis.remote import objects_refused, objects_silent, stage_full
from extraction.diagnosis.servers import server_by_server, together
from hsstore.report import Diagnosis
from hsstore.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from extraction.diagnosis.evidence import Evidence

FULL = "full"
"""How the server's reason begins when it is the spool that has no room."""


def judge(evidence: Evidence, *, stalled_seconds: float) -> Diagnosis:
    """Give the one verdict that fits.

    Parameters
    ----------
    evidence
        Whatever could be collected; all of it may be missing.
    stalled_seconds
        Without progress for longer than this, a run stands still.
    """
    cases = [Case(one, stalled_seconds) for one in server_by_server(evidence)]
    case = Case(together(evidence), stalled_seconds)
    found = next(
        found
        for rule in RULES
        if (found := _ask_of_each(rule, [case] if rule in OF_THE_RUN else cases)) is not None
    )
    return Diagnosis(
        verdict=found.verdict,
        summary=found.summary,
        evidence=tuple(describe(evidence)),
        advice=found.advice,
        kill_cost=kill_cost(case),
        run=evidence.status.run if evidence.status else None,
        store=case.store,
    )


def _ask_of_each(rule: Callable[[Case], Finding | None], cases: Sequence[Case]) -> Finding | None:
    """Ask a rule of each server of a run; that one is away is no verdict while others are there."""
    found = [finding for case in cases if (finding := rule(case)) is not None]
    if not found or (rule is _server_away and len(found) < len(cases)):
        return None
    return min(found, key=lambda one: one.verdict != Verdict.WAITING_FOR_SERVER)


# --- the disk ---------------------------------------------------------------------------------


def _output_blocked(case: Case) -> Finding | None:
    why = case.blocked_by()
    if why is None:
        return None
    where = case.output_mount or case.store
    advice = (
        f"look at {where}: the kernel's log (dmesg), the storage server, a freeze or a snapshot. "
        "The run goes on by itself when the disk answers. "
    )
    if case.worker is not None and case.worker.uninterruptible:
        advice += "A kill works only once it does. "
    how = "is slow, or does not answer" if case.waits_for_fsync else "does not answer"
    return Finding(Verdict.OUTPUT_BLOCKED, f"the output file system {how}: {why}", advice.rstrip())


def _output_refuses(case: Case) -> Finding | None:
    why = case.refused_by()
    if why is None:
        return None
    if case.is_full(why):
        return Finding(
            Verdict.OUTPUT_FULL,
            f"the output file system is full: {why}",
            f"free space or inodes on {case.output_mount or case.store}, or raise the quota; "
            f"then {RERUN}",
        )
    return Finding(
        Verdict.OUTPUT_BLOCKED,
        f"the output file system refuses writes: {why}",
        f"look at {case.output_mount or case.store} and the kernel's log (dmesg); make it writable "
        f"again, then {RERUN}",
    )


# --- nothing runs -----------------------------------------------------------------------------


def _finished(case: Case) -> Finding | None:
    if case.client_alive or not case.store_finished:
        return None
    failed = case.output.failed if case.output else 0
    advice = "`hsstore verify` proves the store"
    if failed:
        advice += f"; {failed} samples failed: --retry-failed asks for them again"
    return Finding(Verdict.FINISHED, "every sample is complete or given up", advice)


def _plan_mismatch(case: Case) -> Finding | None:
    why = case.mismatch()
    if why is None:
        return None
    advice = "use the server, model and data that the store was made with, or another store"
    if case.output is not None and case.output.unreadable_plan:
        advice = (
            "restore what is damaged from a copy of the store (its states can stay as they are), or "
            "make the store anew"
        )
    return Finding(Verdict.PLAN_MISMATCH, f"the store cannot be filled by this run: {why}", advice)


def _client_dead(case: Case) -> Finding | None:
    if case.client_alive:
        return None
    lost = lost_elsewhere(case)
    if lost is not None:
        return lost
    said = case.last_words
    summary = f"no process works on this store{f'; the last run said: {said}' if said else ''}"
    advice = f"{RERUN}: it takes what lies in the spool and asks only for what is pending"
    if case.server_absent:
        advice = f"start the server ({case.server_absent}), then {advice}"
    return Finding(Verdict.CLIENT_DEAD, summary, advice)


# --- the client -------------------------------------------------------------------------------


def _client_stopped(case: Case) -> Finding | None:
    if case.worker is None or not case.worker.stopped:
        return None
    return Finding(
        Verdict.CLIENT_STUCK,
        f"the worker (pid {case.worker.pid}) is stopped by a signal or a debugger",
        f"let it go on: kill -CONT {case.worker.pid}",
    )


def _moving(case: Case) -> Finding | None:
    if case.stalled or case.page_stale:
        return None
    if case.phase == WAITS:
        return _no_server(case) or _waiting(case)
    age = case.progress_age_seconds
    return Finding(Verdict.HEALTHY, f"it made progress {age:.0f} s ago", "nothing to do")


def _loop_stuck(case: Case) -> Finding | None:
    if not case.page_stale:
        return None
    age = case.status.updated_age_seconds if case.status else 0.0
    what = f"its event loop has not run for {age:.0f} s"
    found = _other_disk(case) or _stuck(what, case.main_hang())
    if not case.stalled:
        found = found._replace(advice="wait a little and ask again: it may only be busy")
    return found


def _stage_stuck(case: Case) -> Finding | None:
    stage = case.stuck_stage
    if stage is None:
        return None
    what = f"stage {stage.name} has worked on {stage.detail or 'one item'} for "
    return _stuck(f"{what}{stage.oldest_age_seconds or 0:.0f} s", case.stage_hang())


def _stuck(what: str, how: str) -> Finding:
    return Finding(
        Verdict.CLIENT_STUCK,
        f"the client stands still: {what}: {how}",
        "keep the stacks below for a bug report, kill the run (kill -9, both processes), "
        f"and {RERUN}",
    )


def _busy_before_the_first_request(case: Case) -> Finding | None:
    if case.phase not in {"starting", "reading data", "creating the store"}:
        return None
    if case.worker is None or any(thread.cpu_share > 0 for thread in case.worker.threads):
        return Finding(Verdict.HEALTHY, f"{case.phase}, and computing", "nothing to do")
    what = f"{case.phase}, and nothing computes"
    return _other_disk(case) or _stuck(what, case.main_hang())


def _other_disk(case: Case) -> Finding | None:
    """Name a file system that is not the output's: that of the data, most of all."""
    where = case.other_disk()
    if not where:
        return None
    return Finding(
        Verdict.CLIENT_STUCK,
        f"the client waits for a file system that does not answer: {where}",
        "look at that file's mount: the kernel's log (dmesg), the storage server; the run goes on by "
        "itself when it answers",
    )


# --- the server -------------------------------------------------------------------------------


def _waiting(case: Case) -> Finding:
    state = "no server holds the spool yet"
    if case.server_loading:
        state = "it is loading"
    elif case.server_awaited:
        state = "it has announced itself, and does not answer /health yet"
    return Finding(
        Verdict.WAITING_FOR_SERVER,
        f"waiting for the server of {case.spool_path}: {state}",
        "nothing to do while it loads; the run goes on when the server is ready"
        if case.server_awaited or case.server_loading
        else "start the server; the run goes on when it is ready",
    )


def _no_server(case: Case) -> Finding | None:
    if case.status is None or not case.status.unserved:
        return None
    return Finding(
        Verdict.WAITING_FOR_SERVER,
        "no server is left to ask: all were refused, or taken out of the servers file",
        "name one in the servers file, or take one that is mended out of it and name it again; the "
        "run waits for it (--server-wait), and nothing committed is lost when it ends",
    )


def _server_loading(case: Case) -> Finding | None:
    return _waiting(case) if case.server_loading or case.server_awaited else None


def _server_away(case: Case) -> Finding | None:
    return _server_loading(case) or _server_down(case)


def _server_down(case: Case) -> Finding | None:
    why = case.server_absent
    if not why:
        return None
    return Finding(
        Verdict.SERVER_DOWN,
        f"the server is not there: {why}",
        "look at the server's log, and start it again: the run goes on with it",
    )


def _spool_full(case: Case) -> Finding | None:
    if case.spool is None or not case.spool_is_full:
        return None
    room = case.spool.headroom_bytes or 0
    return Finding(
        Verdict.SPOOL_FULL,
        f"the spool {case.spool.path} has room for {room:,} bytes more",
        "look who fills that memory (ls -l, df), and remove what is not needed; "
        "or give a smaller --spool-budget-gb and a larger tmpfs",
    )


def _only_busy(case: Case) -> Finding | None:
    why = case.only_busy
    if not why:
        return None
    summary = f"the server computes, and captures nothing of it: {why}"
    if why.startswith(FULL):
        return Finding(
            Verdict.SPOOL_FULL,
            summary,
            "the server's memory limit (cgroup) may leave it less room than this side sees: look who "
            f"fills it and {case.spool_path} (df, ls -l), and give it more; the client goes on "
            "asking, and refuses the run when one request alone finds no room in an empty spool",
        )
    return Finding(
        Verdict.DUMP_MISSING,
        summary,
        "look in the server's log for what the plugin says, and give it a larger "
        "HSSTORE_STAGING_MB; the client goes on asking with fewer requests at once",
    )


def _dump_unread(case: Case) -> Finding | None:
    unread = case.unread_dumps
    if not unread:
        return None
    oldest = max(file.age_seconds for file in unread)
    return Finding(
        Verdict.DUMP_UNREAD,
        f"{len(unread)} finished dumps lie in the spool unread, the oldest for {oldest:.0f} s",
        f"the client does not take them: keep the stacks below, kill the run, and {RERUN}: "
        "the dumps are used then",
    )


def _server_hung(case: Case) -> Finding | None:
    why = case.server_hangs()
    if why is None:
        return None
    advice = (
        "look at the server's log and its GPUs: if it computes, and one forward of this model may "
        "take that long, only wait (a larger --stall-after, and --stall-abort, allow for it); else "
        "restart it: the run goes on with it"
    )
    if case.server_stopped:
        advice = f"let it go on: kill -CONT {case.server_pid}"
    return Finding(Verdict.SERVER_HUNG, f"the server hangs: {why}", advice)


def _dump_missing(case: Case) -> Finding | None:
    if not case.in_flight:
        return None
    if case.spool is not None and case.spool.relay:
        return Finding(
            Verdict.DUMP_MISSING,
            f"{case.in_flight} requests wait, and nothing comes from the relay {case.spool.relay}",
            f"look whether it answers ({case.spool.relay}/health) and what the run's log says of it; "
            "if it was ended, start it again on the server's host: the run goes on with it",
        )
    return Finding(
        Verdict.DUMP_MISSING,
        f"{case.in_flight} requests wait, the server has nothing more to do, and their dumps did "
        "not come",
        "look in the server's log for what the plugin says of them; the client asks again when "
        "the requests expire (--request-timeout)",
    )


def _one_is_away(case: Case) -> Finding | None:
    """Name a server that is away though others are there: what has no room there waits for it."""
    queued = case.status.stage("queue") if case.status else None
    return _server_away(case) if queued and queued.items else None


def _inexplicable(case: Case) -> Finding:
    age = case.progress_age_seconds
    since = f"for {age:.0f} s" if age < math.inf else "that can be seen"
    return _stuck(f"no progress {since}, while disk, spool and server look well", case.stage_hang())


RULES: tuple[Callable[[Case], Finding | None], ...] = (
    _finished,
    _client_stopped,
    objects_silent,
    _output_blocked,
    _plan_mismatch,
    stage_full,
    objects_refused,
    _output_refuses,
    _client_dead,
    seen_in_a_copy,
    _moving,
    _loop_stuck,
    _busy_before_the_first_request,
    _stage_stuck,
    _no_server,
    _spool_full,
    _only_busy,
    _server_away,
    _dump_unread,
    _server_hung,
    _dump_missing,
    _one_is_away,
    _inexplicable,
)
"""The first that holds gives the verdict; the last always does."""
OF_THE_RUN = (_dump_unread,)
"""Asked of the run as a whole: which dumps it keeps is not known by server."""

"""Says when a run has stalled, why, and when it goes on; says when it has to be ended.

Everything is judged from /proc and shared memory, so that this works while every disk hangs.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from extraction.diagnosis.collect import collect_local
from extraction.diagnosis.judge import judge
from extraction.page import CAPACITY_BYTES
from extraction.status import DETAIL_CHARACTERS, WatchStatus, parse_watch, stacks_path
from extraction.watchdog.stall import StallClock
from hsstore.report import Diagnosis, KillCost
from hsstore.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from extraction.options import ExtractOptions
    from extraction.page import Page
    from extraction.status import RunStatus

LONGEST_PAUSE_SECONDS = 900.0
"""Between two reports of one stall; the first ones come sooner."""
LOOK_AGAIN_SECONDS = 1.0
JUDGED_SHARE = 0.8
NO_STALL = {Verdict.HEALTHY, Verdict.FINISHED}
HAS_ITS_OWN_LIMIT = {Verdict.WAITING_FOR_SERVER, Verdict.SERVER_DOWN}
"""The worker waits for a server as long as the user has said (`--server-wait`)."""
WAITS = "waiting for server"
KEPT_EVIDENCE = 60
JUDGE_AGAIN_SECONDS = 15.0
"""When a run that might be ended by now waits for what has its own limit."""
STACKS_BYTES = 256 << 10


class Watchdog:
    """Watches one worker.

    Parameters
    ----------
    status_page : Path
        The worker's page.
    watch : Page
        Where the last stall report goes.
    say : callable
        Shows a line to people; must not block.
    """

    def __init__(
        self,
        options: ExtractOptions,
        status_page: Path,
        watch: Page,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._status_page = status_page
        self._watch = watch
        self._say = say
        self.reports = 0
        """Stall reports in all."""
        self.still_seconds = 0.0
        """Without progress until now."""
        self._stall: WatchStatus | None = None
        self._pause = options.stall_after_seconds
        self.start_again()

    def start_again(self) -> None:
        """Forget the worker that was; another one starts."""
        if self._stall is not None:  # it ended with that worker
            self._publish(self._stall.model_copy(update={"recovered_seconds": time.time()}))
        self._clock = StallClock()
        self._stall, self._waiting = None, False
        self.still_seconds = 0.0
        self._begin_anew()

    def look(self, status: RunStatus | None) -> bool:
        """Look at the run; return whether it has stalled for so long that it has to be ended."""
        still = self._clock.look(status)
        if still < self.still_seconds:
            self._go_on()
        self.still_seconds = still
        if still >= self._next_report:
            self._report(still, waits=status is not None and status.phase == WAITS)
        return self._stall is not None and still >= self._end_at and self._is_over(still)

    def end(self) -> None:
        """Note that the worker is killed because of the stall."""
        if self._stall is not None:
            self._publish(self._stall.model_copy(update={"aborted": True}))

    def rehearse(self) -> None:
        """Do all that a report does, without saying it: nothing is loaded later."""
        diagnosis = self._diagnose()
        stall = self._new_stall(diagnosis, 0)
        self._lines(diagnosis, 0)
        self._publish(stall)
        parse_watch(self._watch.read())
        self._watch.write(b"")
        self._stall = None

    def _report(self, still: float, *, waits: bool) -> None:
        diagnosis = self._diagnose()
        if diagnosis.verdict in NO_STALL:  # it has gone on while we looked
            self._next_report = still + min(self._options.stall_after_seconds, LOOK_AGAIN_SECONDS)
            return
        self._next_report = still + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        if diagnosis.verdict in HAS_ITS_OWN_LIMIT and waits:
            self._waiting = True
            self._say(f"waiting for the server for {still:.0f} s: {diagnosis.summary}")
            return
        self.reports += 1
        self._publish(self._new_stall(diagnosis, still))
        for line in self._lines(diagnosis, still):
            self._say(line)

    def _diagnose(self) -> Diagnosis:
        # By its own clock the worker may be a little short of what we have counted.
        limit = JUDGED_SHARE * self._options.stall_after_seconds
        try:
            self._keep_stacks_small()
            evidence = collect_local(self._status_page)
            return judge(evidence, stalled_seconds=limit)
        except Exception as error:  # noqa: BLE001  # what goes wrong here must not end the run
            return _unknown(error)

    def _keep_stacks_small(self) -> None:
        """Start the file for stacks again when many looks have added to it."""
        stacks = stacks_path(self._status_page)
        with suppress(FileNotFoundError):
            if stacks.stat().st_size > STACKS_BYTES:
                os.truncate(stacks, 0)

    def _is_over(self, still: float) -> bool:
        """Judge once more before a run is ended."""
        self._end_at = still + min(self._options.stall_after_seconds, JUDGE_AGAIN_SECONDS)
        return self._diagnose().verdict not in NO_STALL | HAS_ITS_OWN_LIMIT

    def _begin_anew(self) -> None:
        self._next_report = self._pause = self._options.stall_after_seconds
        self._end_at = self._options.stall_abort_seconds or math.inf

    def _new_stall(self, diagnosis: Diagnosis, still: float) -> WatchStatus:
        now = time.time()
        return WatchStatus(
            verdict=diagnosis.verdict,
            summary=diagnosis.summary,
            since_seconds=now - still,
            reported_seconds=now,
            stalled_seconds=still,
            reports=1 + (self._stall.reports if self._stall else 0),
            evidence=tuple(line[:DETAIL_CHARACTERS] for line in diagnosis.evidence[:KEPT_EVIDENCE]),
            advice=diagnosis.advice,
            kill_cost=diagnosis.kill_cost.text,
        )

    @staticmethod
    def _lines(diagnosis: Diagnosis, still: float) -> list[str]:
        return [
            f"stalled: no progress for {still:.0f} s: {diagnosis.verdict}: {diagnosis.summary}",
            *(f"  {line}" for line in diagnosis.evidence),
            f"  what to do: {diagnosis.advice}",
            f"  a kill would cost: {diagnosis.kill_cost.text}",
        ]

    def _go_on(self) -> None:
        """Say that a stall is over, if one was reported."""
        if self._stall is not None:
            seconds = self.still_seconds
            changes = {"recovered_seconds": time.time(), "stalled_seconds": seconds}
            self._publish(self._stall.model_copy(update=changes))
            self._say(f"recovered after {seconds:.0f} s ({self._stall.verdict})")
        elif self._waiting:
            self._say(f"the server is there, after {self.still_seconds:.0f} s")
        self._stall, self._waiting = None, False
        self._begin_anew()

    def _publish(self, stall: WatchStatus) -> None:
        self._stall = stall
        body = stall.model_dump_json().encode()
        if len(body) > CAPACITY_BYTES:
            body = stall.model_copy(update={"evidence": ()}).model_dump_json().encode()
        self._watch.write(body)


def _unknown(error: Exception) -> Diagnosis:
    return Diagnosis(
        verdict=Verdict.CLIENT_STUCK,
        summary="nothing moves, and looking for the cause failed",
        evidence=(f"{type(error).__name__}: {error}",),
        advice="ask `hsstore doctor`, and please report this",
        kill_cost=KillCost(text="nothing committed is lost"),
    )

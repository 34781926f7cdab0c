"""The worker process of `hsstore extract`: all that touches the store, the spool and the server.

Started by the supervisor as ``python -m extraction.worker STATUS_PAGE SUPERVISOR`` (its process
id) with its options as JSON on standard input. It ends with ``os._exit``: a thread that hangs in a write must not keep it.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from extraction.diagnosis.collect import pid_namespace
from extraction.options import ExtractOptions
from extraction.pulse import MINUTE_SECONDS, QUARTER_SECONDS, Pulse, RateMeter
from extraction.run import Run
from extraction.stages import disk_states, oldest_quick_operation
from extraction.status import AT_RISK_SAMPLES, DETAIL_CHARACTERS, RunStatus, StatusPage, stacks_path
from hsstore.errors import HsstoreError, InterruptedRunError
from hsstore.location import absolute_text

T = TypeVar("T")
log = logging.getLogger(__name__)

PUBLISH_SECONDS = 0.2
KEPT_ERRORS = 5
BEFORE_EXTRACTION = {"starting", "reading data", "creating the store"}
"""Phases in which time on the processor is progress."""
PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""


class Worker:
    """One run in this process: its signals, its status page, its exit code."""

    def __init__(self, options: ExtractOptions, page: StatusPage) -> None:
        self._options = options
        self._page = page
        self._run = Run(options, self._update, lambda: self._status.model_dump_json().encode())
        self._pulse = Pulse()
        self._tokens, self._bytes = RateMeter(), RateMeter()
        self._errors = _LastErrors()
        self._status = _first_status(self._run.id, options)

    async def main(self) -> int:
        """Run to the end and return the exit code; SIGTERM stops early, and commits."""
        logging.getLogger().addHandler(self._errors)
        work = asyncio.create_task(self._run.execute())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop, work)
        publishing = asyncio.create_task(self._publish())
        try:
            message, code = await self._watch(work, publishing)
        except asyncio.CancelledError:
            message, code = self._interrupted(), InterruptedRunError.exit_code
        except HsstoreError as error:
            message, code = str(error), error.exit_code
        except Exception as error:  # the process boundary: said once, with its traceback
            log.exception("unexpected error")
            message, code = f"unexpected {type(error).__name__}: {error}", os.EX_SOFTWARE
        logging.getLogger().removeHandler(self._errors)
        if not publishing.done():
            publishing.cancel()
            self._update_progress()
        self._update(phase="ended", message=message, exit_code=code)
        return code

    @staticmethod
    async def _watch(work: asyncio.Task[T], publishing: asyncio.Task[None]) -> T:
        """Wait for the work; without its status page nobody could watch it, and it ends."""
        await asyncio.wait({work, publishing}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
        if publishing.done():
            publishing.result()  # raises: it never ends by itself
        return work.result()

    def _stop(self, work: asyncio.Task[tuple[str, int]]) -> None:
        if work.cancelling():  # a second request must not break off the commits of the first
            return
        self._update(phase="stopping")
        work.cancel()

    def _interrupted(self) -> str:
        committed = self._run.sink.committed if self._run.sink else 0
        return (
            f"interrupted; this run committed {committed} samples, and nothing committed is lost. "
            "To continue, run the same command again"
        )

    async def _publish(self) -> None:
        while True:
            self._update_progress()
            await asyncio.sleep(PUBLISH_SECONDS)

    def _update_progress(self) -> None:
        counters = self._counters()
        fleet = self._run.fleet
        busy = fleet.only_busy if fleet else ""
        servers = self._run.servers
        hoped = [one for one in servers if one.hoped_for]
        self._pulse.spools = tuple(Path(one.spool) for one in hoped)
        self._pulse.look(
            tuple(counters.values()),
            computing_counts=self._status.phase in BEFORE_EXTRACTION,
            beating_counts=not busy,
        )
        self._update(
            **counters,
            **self._rates(),
            stages=self._run.pipeline.stages.states() if self._run.pipeline else disk_states(),
            progress_seconds=self._pulse.progress_seconds,
            progress_count=self._pulse.progress_count,
            oldest_operation=oldest_quick_operation(),
            heartbeat_seconds=self._pulse.heartbeat_seconds,
            last_errors=tuple(self._errors.lines),
            servers=servers,
            server=hoped[0].url if hoped else "",
            spool=hoped[0].spool if hoped else "",
            in_flight=sum(one.in_flight for one in servers),
            only_busy=busy,
            **self._load(),
        )

    def _counters(self) -> dict[str, int]:
        """Return what changes when bytes were moved or committed."""
        pipeline, sink = self._run.pipeline, self._run.sink
        if pipeline is None or sink is None:
            return {}
        return {
            "complete_now": sink.committed,
            "failed_now": pipeline.failed_now,
            "tokens_now": pipeline.tokens_appended,
            "bytes_now": pipeline.bytes_appended,
            "bytes_committed_now": sink.bytes_committed,
            "bytes_stored_now": sink.bytes_stored,
        }

    def _load(self) -> dict[str, object]:
        """Return what is under way, and what it uses."""
        pipeline = self._run.pipeline
        if pipeline is None:
            return {}
        lanes = pipeline.fleet.lanes()
        return {
            "at_risk": tuple(pipeline.holdings.at_risk()[:AT_RISK_SAMPLES]),
            "in_flight_cap": sum(lane.flight.cap for lane in lanes),
            "open_blocks": len(pipeline.open_blocks),
            "retries": pipeline.retries,
            "spool_used_bytes": sum(lane.budget.used_bytes for lane in lanes),
            "spool_budget_bytes": sum(lane.budget.limit_bytes for lane in lanes),
            "message": pipeline.work.waiting or pipeline.message,
        }

    def _rates(self) -> dict[str, float]:
        if self._run.pipeline is None:
            return {}
        self._tokens.add(self._run.pipeline.tokens_appended)
        self._bytes.add(self._run.pipeline.bytes_appended)
        return {
            "tokens_per_second_1min": self._tokens.per_second(MINUTE_SECONDS),
            "tokens_per_second_15min": self._tokens.per_second(QUARTER_SECONDS),
            "bytes_per_second_1min": self._bytes.per_second(MINUTE_SECONDS),
        }

    def _update(self, **changes: object) -> None:
        changes["updated_seconds"] = time.time()
        self._status = self._status.model_copy(update=changes)
        self._page.write(self._status)


class _LastErrors(logging.Handler):
    """Keeps the last warnings and errors, for the status page."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=KEPT_ERRORS)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage()[:DETAIL_CHARACTERS])


def _first_status(run: str, options: ExtractOptions) -> RunStatus:
    now = time.time()
    first = options.first_server
    return RunStatus(
        run=run,
        worker=options.worker_text,
        updated_seconds=now,
        started_seconds=now,
        progress_seconds=now,
        store=absolute_text(options.store),
        spool=str(first.spool) if first else "",
        server=first.url if first else "",
        host=socket.gethostname(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        pid_namespace=pid_namespace(),
        worker_pid=os.getpid(),
        supervisor_pid=os.getppid(),
    )


def _register_stacks(path: Path) -> None:
    """Let SIGUSR2 write every thread's Python stack into shared memory, whatever hangs."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    faulthandler.register(signal.SIGUSR2, file=descriptor, all_threads=True, chain=False)


async def _run_and_exit(options: ExtractOptions, page: StatusPage) -> None:
    code = os.EX_SOFTWARE
    try:
        code = await Worker(options, page).main()
    except Exception:  # the process boundary: not even the last words could be published
        log.exception("unexpected error")
    logging.shutdown()
    os._exit(code)


def main() -> None:
    """Entry point of the process."""
    # When the supervisor dies the kernel sends SIGTERM: what is encoded gets committed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[2]):  # it died before that: nobody would ever stop this run
        return
    _register_stacks(stacks_path(Path(sys.argv[1])))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for package in ("aiobotocore", "botocore"):  # where they found credentials
        logging.getLogger(package).setLevel(logging.WARNING)
    options = ExtractOptions.model_validate_json(sys.stdin.read())
    asyncio.run(_run_and_exit(options, StatusPage(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()

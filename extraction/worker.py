"""The worker process of `hsstore extract`: all that touches the store, the spool and the server.

Started by the supervisor as ``python -m extraction.worker STATUS_PAGE SUPERVISOR`` (its process
id) with its options as JSON on standard input. It ends with ``os._exit``: a thread that hangs in a write must not keep it.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import time
from pathlib import Path

from extraction.options import ExtractOptions
from extraction.run import Run
from extraction.status import RunStatus, StatusPage
from hsstore.errors import HsstoreError, InterruptedRunError

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 0.2
PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""


class Worker:
    """One run in this process: its signals, its status page, its exit code."""

    def __init__(self, options: ExtractOptions, page: StatusPage) -> None:
        self._options = options
        self._page = page
        self._run = Run(options, self._update)
        self._status = RunStatus(run=self._run.id)

    async def main(self) -> int:
        """Run to the end and return the exit code; SIGTERM stops early, and commits."""
        work = asyncio.create_task(self._run.execute())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop, work)
        publishing = asyncio.create_task(self._publish())
        try:
            message, code = await work
        except asyncio.CancelledError:
            message, code = self._interrupted(), InterruptedRunError.exit_code
        except HsstoreError as error:
            message, code = str(error), error.exit_code
        except Exception as error:  # the process boundary: said once, with its traceback
            log.exception("unexpected error")
            message, code = f"unexpected {type(error).__name__}: {error}", 1
        publishing.cancel()
        self._update_progress()
        self._update(phase="ended", message=message, exit_code=code)
        return code

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
        pipeline, sink = self._run.pipeline, self._run.sink
        if pipeline is None or sink is None:
            self._update()
            return
        self._update(
            complete_now=sink.committed,
            failed_now=pipeline.failed_now,
            tokens_now=pipeline.tokens_appended,
            bytes_now=pipeline.bytes_appended,
            bytes_committed_now=sink.bytes_committed,
            bytes_stored_now=sink.bytes_stored,
            in_flight=pipeline.flight.in_flight,
            in_flight_cap=pipeline.flight.cap,
            open_blocks=len(pipeline.open_blocks),
            retries=pipeline.retries,
            spool_used_bytes=pipeline.spool_budget.used_bytes,
            spool_budget_bytes=pipeline.spool_budget.limit_bytes,
            message=pipeline.message,
        )

    def _update(self, **changes: object) -> None:
        changes["updated_seconds"] = time.time()
        self._status = self._status.model_copy(update=changes)
        self._page.write(self._status)


async def _run_and_exit(options: ExtractOptions, page: StatusPage) -> None:
    code = await Worker(options, page).main()
    logging.shutdown()
    os._exit(code)


def main() -> None:
    """Entry point of the process."""
    # When the supervisor dies the kernel sends SIGTERM: what is encoded gets committed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[2]):  # it died before that: nobody would ever stop this run
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = ExtractOptions.model_validate_json(sys.stdin.read())
    asyncio.run(_run_and_exit(options, StatusPage(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()

"""The supervisor of `hsstore extract`: starts the worker, shows its progress, ends with a code.

It never touches the output file system, so it answers and ends also when the worker hangs in a
write that does not return. A worker in uninterruptible sleep cannot be waited for: it is killed,
and left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from extraction.progress import open_display
from extraction.status import StatusPage
from hsstore.errors import InterruptedRunError

if TYPE_CHECKING:
    from types import FrameType

    from extraction.options import ExtractOptions
    from extraction.progress import Display
    from extraction.status import RunStatus

SHOW_SECONDS = 0.2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, a scheduler's end of job, and its warning before that."""


def run_directory() -> Path:
    """Return the directory in shared memory for status pages of this user's runs."""
    return Path(f"/dev/shm/hsstore-{os.geteuid()}")  # noqa: S108  # shared memory, mode 0700


def supervise(options: ExtractOptions) -> int:
    """Run the worker to its end and return the exit code of the command."""
    page = StatusPage.create(run_directory())
    display = open_display()
    try:
        return _Supervisor(options, page, display).run()
    finally:
        display.close()
        page.remove()


class _Supervisor:
    def __init__(self, options: ExtractOptions, page: StatusPage, display: Display) -> None:
        self._options = options
        self._page = page
        self._display = display
        self._stop_requests = 0
        self._stop_sent = False
        self._stop_at: float | None = None
        self._worker: subprocess.Popen[str] | None = None

    def run(self) -> int:
        for number in STOP_SIGNALS:
            signal.signal(number, self._request_stop)
        self._worker = self._start()
        reader = threading.Thread(target=self._relay_log, args=(self._worker,), daemon=True)
        reader.start()
        while self._worker.poll() is None:
            if self._out_of_patience():
                return self._abandon(self._worker)
            self._forward_stop(self._worker)
            self._show()
            time.sleep(SHOW_SECONDS)
        reader.join(timeout=1)
        return self._conclude(self._worker.returncode)

    def _start(self) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-m", "extraction.worker", str(self._page.path), str(os.getpid())],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the supervisor only
        )
        if worker.stdin is not None:
            with suppress(BrokenPipeError):  # it has died already: `_conclude` says so
                worker.stdin.write(self._options.model_dump_json())
                worker.stdin.close()
        return worker

    def _request_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_requests += 1
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._options.grace_seconds

    def _forward_stop(self, worker: subprocess.Popen[str]) -> None:
        """Tell the worker once; here and not in the handler, which may run while it starts."""
        if self._stop_requests and not self._stop_sent:
            worker.send_signal(signal.SIGTERM)
            self._stop_sent = True

    def _out_of_patience(self) -> bool:
        """After the grace period, or on a second request, nothing is waited for."""
        late = self._stop_at is not None and time.monotonic() > self._stop_at
        return late or self._stop_requests > 1

    def _abandon(self, worker: subprocess.Popen[str]) -> int:
        worker.kill()
        self._say(
            "stopped without waiting for the worker: its open blocks were not committed, what was "
            "committed is safe. To continue, run the same command again"
        )
        return InterruptedRunError.exit_code

    def _show(self) -> RunStatus | None:
        status = self._page.read()
        if status is not None:
            self._display.show(status)
        return status

    def _conclude(self, returncode: int) -> int:
        status = self._page.read()
        if status is not None and status.exit_code is not None:
            self._say(status.message)
            return status.exit_code
        if returncode < 0:
            self._say(
                f"the worker was killed by signal {-returncode} ({signal.strsignal(-returncode)}); "
                "nothing committed is lost. To continue, run the same command again"
            )
            return InterruptedRunError.exit_code
        self._say(f"the worker ended with {returncode} before it said why; its log is above")
        return returncode or 1

    def _say(self, message: str) -> None:
        self._display.close()
        sys.stderr.write(f"hsstore: {message}\n")

    def _relay_log(self, worker: subprocess.Popen[str]) -> None:
        if worker.stderr is not None:
            for line in worker.stderr:
                self._display.log(line.rstrip("\n"))

"""The supervisor of `hsstore extract`: starts the worker, watches it, ends with a code.

It never touches the output file system, nor any other disk once the worker runs: everything that
it needs is loaded and has been tried before. So it reports, answers and ends also when the worker
hangs in a write that does not return. A worker in uninterruptible sleep cannot be waited for: it
is killed, and left behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from extraction.metrics import MetricsServer, Vitals
from extraction.progress import rehearse
from extraction.status import RunStatus, parse_watch, run_directory, watch_path
from extraction.watchdog.memory import keep_in_memory
from extraction.watchdog.pages import RunPages
from extraction.watchdog.pipes import ignore_stack_signal
from extraction.watchdog.start import KILL_SECONDS, Start
from extraction.watchdog.voice import Voice, never_read_sources
from extraction.watchdog.watchdog import LONGEST_PAUSE_SECONDS, Watchdog
from hsstore.errors import HsstoreError, InterruptedRunError
from hsstore.location import absolute_text

if TYPE_CHECKING:
    import subprocess
    from types import FrameType
    from typing import BinaryIO

    from extraction.options import ExtractOptions

SHOW_SECONDS = 0.2
LEAVE_SECONDS = 5.0
"""How long a worker may take to be gone after its last word: a thread of it may hang."""
FIRST_WAIT_SECONDS = 5.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Ctrl-C, a scheduler's end of job, its warning before that, and a terminal that is closed."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a worker ended."""

    code: int
    message: str
    again: bool = False
    """Another worker may do better."""


_NOT_STARTED = _Ended(
    InterruptedRunError.exit_code,
    "the worker was not started: the disk with its program does not answer; nothing was changed. To "
    "continue, mend that disk and run the same command again",
)


class _Waiting:
    """A wait that is told of every so often, more and more rarely."""

    def __init__(self, options: ExtractOptions) -> None:
        self._began = time.monotonic()
        self._limit = options.stall_abort_seconds
        self._pause = self._say_at = FIRST_WAIT_SECONDS

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        """Whether it has lasted longer than a stall may."""
        return bool(self._limit) and self.seconds > self._limit

    def is_due(self) -> bool:
        """Tell whether it is time to say something."""
        if self.seconds <= self._say_at:
            return False
        self._pause = min(2 * self._pause, self._limit or LONGEST_PAUSE_SECONDS)
        self._say_at = self.seconds + self._pause
        return True


def supervise(options: ExtractOptions) -> int:
    """Run the worker to its end and return the exit code of the command."""
    ignore_stack_signal()
    store = absolute_text(options.store)
    pages = RunPages.create(run_directory(), store)
    supervisor = voice = None
    try:
        # Under a URL nothing is written but the store, and its claims.
        beside = isinstance(options.store, Path) and not options.dry_run
        voice = Voice(_copies(pages, store) if beside else None)
        supervisor = _Supervisor(options, store, pages, voice)
        code = supervisor.run()
    except HsstoreError:
        raise
    except Exception as error:  # noqa: BLE001  # the process boundary: 1 would mean bad samples
        sys.excepthook(type(error), error, error.__traceback__)
        code = os.EX_SOFTWARE
    finally:
        if voice is not None:
            voice.close()
        left_behind = supervisor is not None and supervisor.left_behind
        if not left_behind:
            pages.remove()
    if left_behind:
        # Its pages stay, for the doctor. What the interpreter does at its end is not ours to
        # prove harmless, and must not wait for a disk.
        os._exit(code)
    return code


def _in_memory(text: str) -> BinaryIO:
    """Return a file in memory to read from: a pipe would make us wait for who reads it."""
    file = os.fdopen(os.memfd_create("hsstore-options"), "w+b")
    file.write(text.encode())
    file.seek(0)
    return file


def _copies(pages: RunPages, store: str) -> list[str | Path]:
    module = "extraction.watchdog.copies"
    path = pages.status.path
    return [sys.executable, "-m", module, path, watch_path(path), store]


class _Supervisor:
    def __init__(self, options: ExtractOptions, store: str, pages: RunPages, voice: Voice) -> None:
        self._options = options
        self._store = store
        self._page = pages.status
        self._watch = pages.watch
        self._voice = voice
        self._watchdog = Watchdog(options, self._page.path, self._watch, voice.say)
        self._stop_requests = 0
        self._stop_sent = False
        self._stop_at: float | None = None
        self._restarts = 0
        self._metrics: MetricsServer | None = None
        self.left_behind = False
        """A worker hangs, and was not waited for."""

    def run(self) -> int:
        """Run workers until one ends for good."""
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._request_stop)
        self._prepare()
        try:
            while True:
                worker = self._start()
                ended = self._follow(worker) if worker else _NOT_STARTED
                if not (worker and ended.again and self._restarts < self._options.restarts):
                    break
                self._voice.say(ended.message)
                if not self._wait_until_gone(worker):
                    break
                self._restarts += 1
                self._voice.say(f"starting again ({self._restarts} of {self._options.restarts})")
            self._voice.say_last(ended.message)
            return ended.code
        finally:
            if self._metrics is not None:
                self._metrics.close()
            for number in STOP_SIGNALS:  # it ends already; the interpreter would die of them
                signal.signal(number, signal.SIG_IGN)

    # --- before the worker starts -------------------------------------------------------------

    def _prepare(self) -> None:
        """Do everything once that may be needed while every disk hangs."""
        self._page.write(self._first_status(0))
        self._page.read()
        self._watchdog.rehearse()
        signal.strsignal(signal.SIGKILL)
        rehearse()
        if self._options.metrics_port is not None:
            host, port = self._options.metrics_host, self._options.metrics_port
            self._metrics = MetricsServer(host, port, self._vitals)
            self._voice.say(f"metrics on http://{host}:{self._metrics.port}/metrics")
        self._show()
        never_read_sources(self._voice)
        keep_in_memory()

    def _first_status(self, worker_pid: int) -> RunStatus:
        """Return what is known before the worker has said anything."""
        now = time.time()
        first = self._options.first_server
        return RunStatus(
            run="",
            worker=self._options.worker_text,
            updated_seconds=now,
            started_seconds=now,
            progress_seconds=now,
            store=self._store,
            spool=str(first.spool) if first else "",
            server=first.url if first else "",
            worker_pid=worker_pid,
            supervisor_pid=os.getpid(),
        )

    def _vitals(self) -> Vitals:
        return Vitals(
            status=self._page.read(),
            stall=parse_watch(self._watch.read()),
            still_seconds=self._watchdog.still_seconds,
            stall_reports=self._watchdog.reports,
            restarts=self._restarts,
        )

    def _start(self) -> subprocess.Popen[str] | None:
        """Start a worker; return None when that took longer than a stall may, or the user will."""
        self._watchdog.start_again()
        self._stop_sent = False
        self._page.write(self._first_status(0))  # not what the worker before this one said last
        arguments = [str(self._page.path), str(os.getpid())]
        with _in_memory(self._options.model_dump_json()) as options:
            start = Start([sys.executable, "-m", "extraction.worker", *arguments], options)
            worker = self._wait_for_start(start)
        if worker is None:
            self.left_behind = not start.give_up()
        else:
            self._page.write(self._first_status(worker.pid))  # it writes when it has its options
        return worker

    def _wait_for_start(self, start: Start) -> subprocess.Popen[str] | None:
        waiting = _Waiting(self._options)
        while (worker := start.wait(SHOW_SECONDS)) is None:
            if waiting.is_over or (self._stop_requests and waiting.seconds > FIRST_WAIT_SECONDS):
                return None
            if waiting.is_due():
                self._voice.say(
                    f"the worker has not started for {waiting.seconds:.0f} s: its program cannot be "
                    "loaded until the disk that it lies on answers"
                )
        return worker

    # --- while it runs ------------------------------------------------------------------------

    def _follow(self, worker: subprocess.Popen[str]) -> _Ended:
        reader = threading.Thread(target=self._relay_log, args=(worker,), daemon=True)
        reader.start()
        spoke_last_at: float | None = None
        while worker.poll() is None:
            if self._out_of_patience():
                return self._abandon(worker)
            self._forward_stop(worker)
            status = self._show()
            if status is not None and status.exit_code is not None:
                spoke_last_at = spoke_last_at or time.monotonic()
                if time.monotonic() > spoke_last_at + LEAVE_SECONDS:
                    self._kill(worker)
                    return self._last_words(status)
            elif self._watchdog.look(status):
                return self._end_stalled(worker)
            time.sleep(SHOW_SECONDS)
        reader.join(timeout=1)
        status = self._page.read()
        if status is not None and status.exit_code is not None:
            self._watchdog.look(status)  # a stall that was reported may have ended since
        return self._conclude(worker.returncode)

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

    def _show(self) -> RunStatus | None:
        status = self._page.read()
        if status is not None:
            self._voice.show(status)
        return status

    def _relay_log(self, worker: subprocess.Popen[str]) -> None:
        if worker.stdout is not None:
            for line in worker.stdout:
                self._voice.log(line.rstrip("\n"))

    # --- the end ------------------------------------------------------------------------------

    def _abandon(self, worker: subprocess.Popen[str]) -> _Ended:
        self._kill(worker)
        return _Ended(
            InterruptedRunError.exit_code,
            "stopped without waiting for the worker: its open blocks were not committed, what was "
            "committed is safe. To continue, run the same command again",
        )

    def _end_stalled(self, worker: subprocess.Popen[str]) -> _Ended:
        self._watchdog.end()
        self._kill(worker)
        return _Ended(
            InterruptedRunError.exit_code,
            f"no progress for {self._watchdog.still_seconds:.0f} s (--stall-abort): the worker "
            f"(pid {worker.pid}) was killed, and not waited for; what was committed is safe. To "
            "continue, mend the cause and run the same command again",
            again=True,
        )

    def _kill(self, worker: subprocess.Popen[str]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        deadline = time.monotonic() + KILL_SECONDS
        while worker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self.left_behind = worker.poll() is None

    def _wait_until_gone(self, worker: subprocess.Popen[str]) -> bool:
        """Wait for a killed worker; return False when the user does not want to wait any more."""
        waiting = _Waiting(self._options)
        while worker.poll() is None:
            if self._stop_requests:
                return False
            if waiting.is_due():
                self._voice.say(
                    f"waiting for the killed worker (pid {worker.pid}) to be gone, for "
                    f"{waiting.seconds:.0f} s: it hangs in the kernel until the disk answers"
                )
            time.sleep(SHOW_SECONDS)
        self.left_behind = False
        return not self._stop_requests

    def _conclude(self, returncode: int) -> _Ended:
        status = self._page.read()
        if status is not None and status.exit_code is not None:
            return self._last_words(status)
        if returncode < 0:
            return _Ended(
                InterruptedRunError.exit_code,
                f"the worker was killed by signal {-returncode} ({signal.strsignal(-returncode)})"
                "; nothing committed is lost. To continue, run the same command again",
                again=not self._stop_requests,
            )
        message = f"the worker ended with {returncode} before it said why; its log is above"
        return _Ended(os.EX_SOFTWARE, message)

    def _last_words(self, status: RunStatus) -> _Ended:
        interrupted = status.exit_code == InterruptedRunError.exit_code
        again = interrupted and not self._stop_requests
        return _Ended(status.exit_code or 0, status.message, again=again)

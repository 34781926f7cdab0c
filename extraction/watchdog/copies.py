"""Copies status, log and last stall report of a run to `STORE.runs/`, for people on other hosts.

A process of its own: ``python -m extraction.watchdog.copies STATUS_PAGE WATCH_PAGE STORE``, with
the log on standard input. It may hang on the store's disk without harm to anybody, so nothing
here has a time limit. It writes only where a run has already made the directory.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from extraction.diagnosis.copies import (
    ALIVE_SECONDS,
    COPY_SECONDS,
    LOG,
    STALL,
    STATUS,
    runs_directory,
)
from extraction.page import Page

END = b"\0"
"""Ends the log when the run has ended well."""
LOOK_SECONDS: Final = 1.0
LINGER_SECONDS: Final = 5.0
"""How long after the supervisor's death the worker's last words are waited for."""
KEPT_RUNS: Final = 20
LOG_BYTES: Final = 1 << 20
"""Of a log that cannot be written yet, the end is kept."""
_COPY: Final = re.compile(r"([0-9a-f]{12})(\.status\.json|\.stall\.json|\.log)")


class Copies:
    """The files of one run beside its store."""

    def __init__(self, status: Page, watch: Page, directory: Path) -> None:
        self._status, self._watch, self._directory = status, watch, directory
        self._log = b""
        self._copied_stall: tuple[str, bytes] | None = None
        self._copied_at = 0.0

    @property
    def status(self) -> dict[str, object]:
        """The last state of the run; empty while there is none."""
        body = self._status.read()
        return json.loads(body) if body else {}

    def add_log(self, text: bytes) -> None:
        """Take more of the log."""
        self._log = (self._log + text)[-LOG_BYTES:]

    def copy(self, *, now: bool = False) -> None:
        """Write what is due; a disk that refuses is tried again later."""
        run = self.status.get("run")
        if not isinstance(run, str) or not run:
            return
        due = now or time.monotonic() - self._copied_at > COPY_SECONDS
        with suppress(OSError):
            if self._directory.is_dir():
                self._copy_all(run, due=due)

    def _copy_all(self, run: str, *, due: bool) -> None:
        self._copy_stall(run)
        due = due or not self._copied_at
        if due:
            self._copied_at = time.monotonic()
            self._copy_log(run)
            self._replace(run + STATUS, self._status.read())
            self._remove_old()

    def _copy_stall(self, run: str) -> None:
        stall = self._watch.read()
        if stall and (run, stall) != self._copied_stall:
            self._replace(run + STALL, stall)
            self._copied_stall = (run, stall)
            self._copied_at = 0.0  # with the state that belongs to it

    def _copy_log(self, run: str) -> None:
        with (self._directory / (run + LOG)).open("ab", buffering=0) as file:
            while self._log:  # what a full disk has not taken is kept
                self._log = self._log[file.write(self._log) :]

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self._directory / f".{name}.{os.getpid()}"
        try:
            temporary.write_bytes(content)
            temporary.replace(self._directory / name)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def _remove_old(self) -> None:
        copies = [path for path in self._directory.iterdir() if _COPY.fullmatch(path.name)]
        newest: dict[str, float] = {}
        for path in copies:
            run = path.name[:12]
            newest[run] = max(newest.get(run, 0.0), path.stat().st_mtime)
        # However many there are: those that are renewed are of other workers on this store.
        now = max(newest.values(), default=0.0)
        kept = {run for run, changed in newest.items() if now - changed < ALIVE_SECONDS}
        others = sorted(newest.keys() - kept, key=lambda run: newest[run], reverse=True)
        kept.update(others[:KEPT_RUNS])
        for path in copies:
            if path.name[:12] not in kept:
                path.unlink(missing_ok=True)


def _follow(copies: Copies) -> None:
    """Copy until the supervisor closes the log, by its end or by its death."""
    while True:
        ready, _, _ = select.select([0], [], [], LOOK_SECONDS)
        if ready:
            text = os.read(0, 1 << 16)
            if not text:
                _linger(copies)
                return
            copies.add_log(text.removesuffix(END))
            if text.endswith(END):
                return
        copies.copy()


def _linger(copies: Copies) -> None:
    """Wait for the end of a worker that outlives its supervisor for a moment."""
    deadline = time.monotonic() + LINGER_SECONDS
    while time.monotonic() < deadline and copies.status.get("exit_code") is None:
        if not _lives(copies.status.get("worker_pid")):
            return
        time.sleep(0.1)


def _lives(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def main() -> None:
    """Entry point of the process."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # a scheduler tells all; the end of the log counts
    status, watch, store = map(Path, sys.argv[1:4])
    copies = Copies(Page(status), Page(watch), runs_directory(store))
    _follow(copies)
    copies.copy(now=True)
    os._exit(0)  # somebody waits for it


if __name__ == "__main__":
    main()

"""All that a supervisor says, to the terminal and to the log beside the store; it never waits."""

from __future__ import annotations

import linecache
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO, cast

from extraction.progress import open_display
from extraction.watchdog.copies import END
from extraction.watchdog.pipes import FLUSH_SECONDS, HelperPipe, open_relay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from extraction.status import RunStatus


class Voice:
    """The display, behind a process that owns standard error, and a copy of the log.

    Parameters
    ----------
    copies : sequence of str or Path, optional
        Command of the process that keeps copies beside the store; it reads the log.
    """

    def __init__(self, copies: Sequence[str | Path] | None) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._relay = open_relay()
        self._copies = HelperPipe(copies, quiet=True) if copies else None
        self.stream = cast("TextIO", self._relay)
        """Stands for standard error."""
        self._display = open_display(self.stream, terminal=terminal)

    def show(self, status: RunStatus) -> None:
        """Show a state."""
        self._display.show(status)

    def log(self, line: str) -> None:
        """Show a line of the worker's log."""
        self._display.log(line)
        if self._copies is not None:
            self._copies.write(f"{line}\n")

    def say(self, line: str) -> None:
        """Show a line of the supervisor's own."""
        self.log(f"hsstore: {line}")

    def say_last(self, text: str) -> None:
        """Say how it has ended, and nothing more."""
        self._display.close()
        self._relay.write(f"hsstore: {text}\n")
        if self._copies is not None:
            self._copies.write(f"hsstore: {text}\n")

    def close(self) -> None:
        """Wait a moment for what has been said to arrive."""
        self._display.close()
        sys.stderr = sys.__stderr__
        if self._copies is not None:
            self._copies.write(END.decode())
        deadline = time.monotonic() + FLUSH_SECONDS
        pipes = [pipe for pipe in (self._relay, self._copies) if pipe is not None]
        for pipe in pipes:
            pipe.end()
        for pipe in pipes:
            pipe.wait(deadline - time.monotonic())


def never_read_sources(voice: Voice) -> None:
    """Report exceptions without their source lines: the sources may lie on a disk that hangs."""

    def brief(kind: type[BaseException], error: BaseException | None, where: str) -> None:
        voice.say(f"unexpected {kind.__name__}: {error} ({where}); please report this")

    def in_main(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        brief(kind, error, _innermost(trace))

    def in_thread(arguments: threading.ExceptHookArgs) -> None:
        brief(arguments.exc_type, arguments.exc_value, _innermost(arguments.exc_traceback))

    def unraisable(arguments: sys.UnraisableHookArgs) -> None:
        brief(arguments.exc_type, arguments.exc_value, _innermost(arguments.exc_traceback))

    sys.stderr = voice.stream  # for what a library may print
    sys.excepthook, threading.excepthook, sys.unraisablehook = in_main, in_thread, unraisable
    linecache.updatecache = lambda *_: []


def _innermost(trace: TracebackType | None) -> str:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "nowhere"

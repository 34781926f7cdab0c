"""Show a run to people: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from extraction.status import RunStatus

PLAIN_SECONDS = 10.0
"""Between plain lines; a new phase is shown at once."""


class Display(Protocol):
    """Shows states of a run and its log lines."""

    def show(self, status: RunStatus) -> None:
        """Show a state."""

    def log(self, line: str) -> None:
        """Show a line of the worker's log."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def open_display(stream: TextIO, *, terminal: bool) -> Display:
    """Return the display that fits what is behind a stream."""
    if terminal:
        return LiveDisplay(_console(stream))
    return PlainDisplay(stream)


def rehearse() -> None:
    """Print what makes the library for terminals load its tables, to nowhere."""
    _console(io.StringIO()).print("\u65e5", markup=False, highlight=False)


def _console(stream: TextIO) -> Console:
    # Its table of emoji would be loaded with the first line: from a disk that may hang by then.
    return Console(file=stream, force_terminal=True, emoji=False)


class Rates:
    """Speed since this run began to extract, and what is left."""

    def __init__(self) -> None:
        self._started: float | None = None

    def line(self, status: RunStatus) -> str:
        """Describe a state in one line, without its phase."""
        if status.phase == "extracting" and self._started is None:
            self._started = time.monotonic()
        seconds = max(time.monotonic() - (self._started or time.monotonic()), 1.0)
        done = status.complete + status.complete_now
        text = (
            f"{done:,}/{status.samples:,} samples  {status.tokens_now / seconds:,.0f} tokens/s  "
            f"{status.bytes_now / seconds / 1e6:,.1f} MB/s  ratio {_ratio(status)}  "
            f"ETA {self._eta(status, seconds)}  in flight {status.in_flight}/"
            f"{status.in_flight_cap}  spool {_fill(status)}"
        )
        failed = status.failed + status.failed_now
        return text + _servers(status) + (f"  failed {failed:,}" if failed else "")

    @staticmethod
    def _eta(status: RunStatus, seconds: float) -> str:
        left = status.tokens_pending - status.tokens_now
        if not status.tokens_now or left < 0:
            return "-"
        return _duration(left / (status.tokens_now / seconds))


def _servers(status: RunStatus) -> str:
    """Say how many of several servers are asked."""
    wanted = [one for one in status.servers if one.state != "leaving"]
    if len(wanted) < 2:
        return ""
    return f"  servers {sum(one.state == 'up' for one in wanted)}/{len(wanted)}"


def _ratio(status: RunStatus) -> str:
    """Raw over stored bytes of what is committed; blocks in progress are left out."""
    if not status.bytes_stored_now:
        return "-"
    return f"{status.bytes_committed_now / status.bytes_stored_now:.2f}"


def _fill(status: RunStatus) -> str:
    if not status.spool_budget_bytes:
        return "-"
    return f"{status.spool_used_bytes / status.spool_budget_bytes:.0%}"


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class PlainDisplay:
    """Lines on a stream, by default standard error."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._rates = Rates()
        self._phase = ""
        self._shown = 0.0

    def show(self, status: RunStatus) -> None:
        """Print a line when the phase is new, or every few seconds."""
        now = time.monotonic()
        if status.phase == self._phase and now - self._shown < PLAIN_SECONDS:
            return
        extracting = status.phase == "extracting"
        self._phase, self._shown = status.phase, now
        self.log(f"{status.phase}: {self._rates.line(status)}" if extracting else status.phase)

    def log(self, line: str) -> None:
        """Print a line."""
        (self._stream or sys.stderr).write(f"{line}\n")

    def close(self) -> None:
        """Do nothing."""


class LiveDisplay:
    """A bar and a line of figures at the bottom of the terminal; log lines above it."""

    def __init__(self, console: Console) -> None:
        self._rates = Rates()
        self._console = console
        self._live = Live(console=self._console, refresh_per_second=5, transient=True)
        self._live.start()

    def show(self, status: RunStatus) -> None:
        """Redraw."""
        table = Table.grid(padding=(0, 1))
        done = status.complete + status.complete_now
        bar = ProgressBar(total=max(status.samples, 1), completed=done, width=40)
        table.add_row(Text(status.phase, style="bold"), bar)
        self._live.update(Group(table, self._rates.line(status), Text(status.message, "dim")))

    def log(self, line: str) -> None:
        """Print a line above the display."""
        self._console.print(line, markup=False, highlight=False, emoji=False)

    def close(self) -> None:
        """Remove the display."""
        self._live.stop()

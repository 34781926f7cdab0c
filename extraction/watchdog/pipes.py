"""Writing where a write may never return: by a small process that may hang in our place.

The supervisor writes into a pipe and never waits: what does not fit is dropped, and counted. The
process at the other end owns the file. When its disk stands still it hangs, harms nobody, and is
left behind.
"""

from __future__ import annotations

import fcntl
import io
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PIPE_BYTES: Final = 1 << 20
FLUSH_SECONDS: Final = 2.0
"""How long the end of a run waits for a process that still has something to write."""

# What a scheduler sends to every process of a job must not end it: the end of its input does.
_RELAY: Final = """
import os, signal
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
while data := os.read(0, 65536):
    while data:
        data = data[os.write(2, data):]
os._exit(0)
"""


class HelperPipe(io.TextIOBase):
    """A text stream into a helper process; a write never blocks, and never fails.

    Parameters
    ----------
    command : sequence of str
        The process, which reads its standard input until it ends.
    quiet : bool
        Do not let it have our standard error: whoever reads that to its end would wait for it.
    """

    def __init__(self, command: Sequence[str | Path], *, quiet: bool = False) -> None:
        super().__init__()
        self.dropped_bytes = 0
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if quiet else None,
            start_new_session=True,  # Ctrl-C is for the supervisor
        )
        if self._process.stdin is None:
            raise RuntimeError("a pipe was asked for")
        self._pipe = self._process.stdin.fileno()
        os.set_blocking(self._pipe, False)
        with suppress(OSError):  # beyond what an ordinary user may have: it stays smaller
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @override
    def write(self, text: str, /) -> int:
        """Write all of a text, or as much as fits."""
        data = text.encode(errors="replace")
        with self._lock, suppress(OSError):  # its reader is gone: nobody will read this
            while data:
                try:
                    data = data[os.write(self._pipe, data) :]
                except BlockingIOError:
                    break
        self.dropped_bytes += len(data)
        return len(text)

    @override
    def writable(self) -> bool:
        """Say that this is for writing."""
        return True

    def end(self) -> None:
        """End the stream; the process ends when it has written everything."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def wait(self, seconds: float) -> bool:
        """Return whether the process got rid of everything in time."""
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True


def open_relay() -> HelperPipe:
    """Start the process that owns our standard error."""
    return HelperPipe([sys.executable, "-I", "-S", "-c", _RELAY])


def ignore_stack_signal() -> None:
    """Ignore SIGUSR2, also in children until they want it: it would kill a worker that starts."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

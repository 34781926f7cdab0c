"""Start a program whose file may lie on a disk that does not answer.

A start returns once the kernel has opened the program. That is the shell, which goes on to the
program that is meant: so a disk with the interpreter on it holds up the shell and not us. Where the
shell itself does not come, a thread waits for it, in a fork: `vfork` would stop this whole process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

SHELL: Final = ("/bin/sh", "-c", 'exec "$@"', "sh")
KILL_SECONDS: Final = 1.0
"""How long a process that is not stuck in the kernel takes to die."""


class Start:
    """A program that is being started, in a session of its own; its output is one pipe."""

    def __init__(self, command: Sequence[str], stdin: BinaryIO) -> None:
        subprocess._USE_VFORK = False  # type: ignore[misc]  # noqa: SLF001  # a documented switch
        self._command, self._stdin = command, stdin
        # Its number is known, and can be killed, before its start returns.
        self._process: subprocess.Popen[str] = subprocess.Popen.__new__(subprocess.Popen)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._open, daemon=True)
        self._thread.start()

    def _open(self) -> None:
        try:
            subprocess.Popen.__init__(
                self._process,
                [*SHELL, *self._command],
                stdin=self._stdin,
                stdout=subprocess.PIPE,  # not ours: who reads that to its end would wait for a hang
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches the supervisor only
            )
        except Exception as error:  # noqa: BLE001  # raised where it is waited for
            self._error = error

    def wait(self, seconds: float) -> subprocess.Popen[str] | None:
        """Return the process, or None when it has not started yet.

        Raises
        ------
        OSError
            There are no processes or descriptors left, or there is no shell.
        """
        self._thread.join(seconds)
        if self._thread.is_alive():
            return None
        if self._error is not None:
            raise self._error
        return self._process

    def give_up(self) -> bool:
        """Kill what has not started; return whether it is gone."""
        pid = getattr(self._process, "pid", None)
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._thread.join(KILL_SECONDS)
        return not self._thread.is_alive()

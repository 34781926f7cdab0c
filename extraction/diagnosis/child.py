"""Work that may hang, in a child process with a deadline.

The child is forked, so that nothing is loaded from a disk that may be the one that hangs. It tells
what it is about to do before it does it. One in uninterruptible sleep cannot be killed or waited
for: it is left behind, and ends by itself when its disk answers.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[str], object]
    """Names the step that comes next."""

_REAP_SECONDS: Final = 0.2
_CHUNK_BYTES: Final = 1 << 16
_DESCRIPTORS: Final = 256
"""More than a command has open."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a child's work."""

    answered: bool
    """It ended in time."""
    result: Any
    """What the work returned, through JSON; None where it failed or did not answer."""
    error: str
    """What it raised."""
    last_step: str
    """What it was doing last."""


class Child:
    """One child at work; it has been started."""

    def __init__(self, work: Callable[[Tell], object]) -> None:
        ours, its = os.pipe()
        nowhere = os.open(os.devnull, os.O_RDWR)
        with warnings.catch_warnings():
            # The child runs Python alone; it never takes a lock of the parent's other threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            for descriptor in range(3):  # who reads our output must not wait for a child that hangs
                os.dup2(nowhere, descriptor)
            os.closerange(3, its)
            os.closerange(its + 1, _DESCRIPTORS)
            _run(work, its)
        os.close(its)
        os.close(nowhere)
        self._pipe = ours
        self._text = b""

    def wait(self, deadline: float) -> Answer:
        """Wait until the work ends, at most until a time of `time.monotonic`; then kill it."""
        ended = self._read_until(deadline)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._pipe)
        _reap(self._pid)
        return _answer(self._text, ended=ended)

    def _read_until(self, deadline: float) -> bool:
        # An answer that is there already counts also when we come late.
        while select.select([self._pipe], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            chunk = os.read(self._pipe, _CHUNK_BYTES)
            if not chunk:
                return True
            self._text += chunk
        return False


def _run(work: Callable[[Tell], object], pipe: int) -> None:
    """Be the child: work, report, and end without running anything of the parent's."""

    def send(kind: str, content: object) -> None:
        os.write(pipe, json.dumps([kind, content]).encode() + b"\n")

    code = 1
    try:
        _let_go_of_terminal()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        send("result", work(lambda step: send("step", step)))
        code = 0
    except BaseException as error:  # noqa: BLE001  # a process boundary: the parent is told
        with suppress(OSError):
            send("error", f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _let_go_of_terminal() -> None:
    """Drop the parent's streams: whoever reads them to their end would wait for a child's hang."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)


def _answer(text: bytes, *, ended: bool) -> Answer:
    found: dict[str, Any] = {}
    for line in text.splitlines():
        with suppress(ValueError):  # the last line of one that was killed
            kind, content = json.loads(line)
            found[kind] = content
    error = found.get("error", "")
    if ended and not error and "result" not in found:
        error = "it ended without an answer"
    return Answer(ended, found.get("result"), error, found.get("step", ""))


def _reap(pid: int) -> None:
    deadline = time.monotonic() + _REAP_SECONDS
    while time.monotonic() < deadline:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
                continue
        return

"""Python stacks of another process: it writes them itself, into shared memory, on a signal.

The signal's handler is faulthandler's: it works while every thread hangs, and needs no lock.
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Final

from extraction.diagnosis.evidence import StackEvidence

if TYPE_CHECKING:
    from collections.abc import Sequence

STACKS_SIGNAL: Final = signal.SIGUSR2
STACKS_SUFFIX: Final = ".stacks"
"""Of the file beside the status page."""
FRAMES: Final = 12
"""Innermost frames that are kept of a thread."""
LARGEST_BYTES: Final = 256 << 10
_POLL_SECONDS: Final = 0.02
_FRAME: Final = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_THREAD: Final = re.compile(r"(?:Current t|T)hread (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent")
_OWN: Final = ("/extraction/", "/hsstore/")
_IDLE: Final = ("concurrent/futures/thread.py", "_worker")
_BEAT: Final = "hsstore/liveness.py"


def read_stacks(
    pid: int, path: str, *, patience_seconds: float = 0.5
) -> tuple[tuple[StackEvidence, ...], str]:
    """Ask a process for its stacks; return them, or why there are none.

    It must have registered `STACKS_SIGNAL` with faulthandler and `path`: the signal would end a
    process that has not.
    """
    try:
        before = os.stat(path).st_size  # noqa: PTH116
        os.kill(pid, STACKS_SIGNAL)
    except FileNotFoundError:
        return (), "the stacks cannot be read: the process has not offered them"
    except OSError as error:
        return (), f"the stacks cannot be read: {error.strerror}"
    text = _wait_for_more(path, before, patience_seconds)
    stacks = parse_stacks(text.splitlines())
    return (stacks, "") if stacks else ((), "the stacks cannot be read: it did not answer")


def parse_stacks(lines: Sequence[str]) -> tuple[StackEvidence, ...]:
    """Read what faulthandler wrote.

    >>> parse_stacks(['Thread 0x7f (most recent call first):', '  File "/x/run.py", line 5 in go'])
    (StackEvidence(thread='0x7f', frames=('/x/run.py:5 go',)),)
    """
    stacks: list[tuple[str, list[str]]] = []
    for line in lines:
        if header := _THREAD.match(line):
            stacks.append((" ".join(filter(None, header.groups())), []))
        elif stacks and (frame := _FRAME.match(line)):
            file, number, function = frame.groups()
            stacks[-1][1].append(f"{_short(file)}:{number} {function}")
    return tuple(StackEvidence(thread, tuple(frames[:FRAMES])) for thread, frames in stacks)


def is_main(stack: StackEvidence) -> bool:
    """Tell whether this is the thread of the worker's event loop."""
    return any("asyncio/" in frame and " _run_once" in frame for frame in stack.frames) or any(
        frame.startswith("extraction/worker.py") for frame in stack.frames
    )


def is_idle(stack: StackEvidence) -> bool:
    """Tell whether this is a pool's thread without work, or the one that beats for the claims."""
    first = stack.frames[0] if stack.frames else ""
    beats = first.endswith(" wait") and any(frame.startswith(_BEAT) for frame in stack.frames)
    return beats or (first.split(":")[0].endswith(_IDLE[0]) and first.endswith(_IDLE[1]))


def shorten(frames: Sequence[str], most: int = 3) -> str:
    """Name the innermost frame and the nearest ones that are ours."""
    ours = [frame for frame in frames[1:] if frame.startswith(("extraction/", "hsstore/"))]
    return " <- ".join([*frames[:1], *ours[: most - 1]])


def _wait_for_more(path: str, before_bytes: int, patience_seconds: float) -> str:
    """Read what is written behind `before_bytes`, once it has stopped growing."""
    deadline = time.monotonic() + patience_seconds
    size = before_bytes
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        now = os.stat(path).st_size  # noqa: PTH116
        if now == size > before_bytes:
            break
        size = now
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, LARGEST_BYTES, before_bytes).decode(errors="replace")
    finally:
        os.close(descriptor)


def _short(file: str) -> str:
    """Shorten a path to the package it is of."""
    for package in _OWN:
        if package in file:
            return package.strip("/") + "/" + file.rpartition(package)[2]
    for marker in ("/site-packages/", "/lib/python"):
        if marker in file:
            tail = file.rpartition(marker)[2]
            return tail.partition("/")[2] if marker == "/lib/python" else tail
    return file

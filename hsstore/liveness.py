"""Whether a run lives: the lock that it holds, and the time of that file, which it renews.

A lock proves life and death where locks reach: on one host, boot and pid namespace. Elsewhere the
time of the lock file tells when its run last gave a sign of life. That time and the one that it is
compared with are both of the file server's clock: hosts whose clocks differ are no matter.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hsstore.activity import tick
from hsstore.errors import OutputError, RefusedError
from hsstore.files import output_errors, refresh_attributes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hsstore.claim import Claim

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""So long somebody may hold a lock who only looks at it."""
BEAT_SECONDS = 10.0
LISTEN_SECONDS = 1.0
SILENT_SECONDS = 60.0
"""Who has given no sign of life for so long may be dead. Nothing is ever taken away for that alone."""
ON_DEMAND = (
    "Whether it lives cannot be told from here (another host, boot or container): if you are sure that "
    "it is dead, run again with --take-over"
)


class Beat:
    """Renews the time of a file again and again, from a thread of its own: it may hang alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ended = threading.Event()
        thread = threading.Thread(target=self._run, name="beat", daemon=True)
        thread.start()

    def end(self) -> None:
        """Beat no more. Does not wait for a disk that does not answer."""
        self._ended.set()

    def _run(self) -> None:
        # Not an `operation`: that would count as progress of a run that makes none.
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OSError):  # the disk's errors are told by whoever writes data there
                os.utime(self._path)


class Others:
    """What one run can tell of the life of others.

    Parameters
    ----------
    directory : Path
        Of the claims and locks.
    take_over : bool
        Whether long silence is enough where death cannot be proven.
    """

    def __init__(self, directory: Path, me: Claim, *, take_over: bool) -> None:
        self._directory = directory
        self._me = me
        self._take_over = take_over

    @contextmanager
    def proof_of_death(self, owner: Claim, *, patient: bool = True) -> Iterator[None]:
        """Hold the lock of a dead run: of several who want its claims, one gets them.

        Parameters
        ----------
        patient : bool
            Where it may be taken over, wait until it has been silent for long enough.

        Raises
        ------
        RefusedError
            It lives, or may live; the message says what to do.
        """
        lock = None
        if self.reach(owner) or (self._take_over and self._is_silent(owner, patient=patient)):
            lock = open_lock(lock_path(self._directory, owner.run))
        if lock is None:
            raise RefusedError(self.refusal(owner))
        try:
            yield
        finally:
            os.close(lock)

    def reach(self, owner: Claim) -> bool:
        """Whether the lock of a run tells from here if it lives."""
        return owner.shares_locks_with(self._me)

    def silence_seconds(self, owner: Claim) -> float:
        """Return for how long a run has given no sign of life; 0 where it is proven to live.

        Raises
        ------
        OutputError
        """
        if self.reach(owner):
            return 0.0 if lives(self._directory, owner.run) else math.inf
        theirs, mine = (lock_path(self._directory, run) for run in (owner.run, self._me.run))
        with output_errors(mine):
            return _silence_seconds(theirs, mine)

    def refusal(self, owner: Claim) -> str:
        """Say that a run is in the way, and what to do."""
        text = (
            f"this store is being written by {owner.who}; wait for it, or stop it, then run again"
        )
        if self.reach(owner):
            return text
        text = f"{text}. {self.last_sign(owner)}"
        return text if self._take_over else f"{text}. {ON_DEMAND}"

    def last_sign(self, owner: Claim) -> str:
        """Say when a run was last heard of."""
        try:
            silent = self.silence_seconds(owner)
        except OutputError as error:
            return f"When it last gave a sign of life is not known: {error}"
        if silent == math.inf:
            return "It gives no sign of life"
        return f"Its last sign of life came {silent:.0f} s ago, by the file server's clock"

    def _is_silent(self, owner: Claim, *, patient: bool) -> bool:
        before, now = 0.0, self.silence_seconds(owner)
        if patient and now < SILENT_SECONDS:
            log.info("taking over from %s, if it is silent for %.0f s", owner.who, SILENT_SECONDS)
        while patient and before <= now < SILENT_SECONDS:
            time.sleep(LISTEN_SECONDS)
            tick()
            before, now = now, self.silence_seconds(owner)
        return now >= SILENT_SECONDS


def _silence_seconds(path: Path, mine: Path) -> float:
    """Return how long ago the time of a file was renewed; that of our own is renewed now."""
    os.utime(mine)
    for one in (mine, path):
        refresh_attributes(one)
    try:
        renewed = path.stat().st_mtime
    except FileNotFoundError:
        return math.inf
    return max(mine.stat().st_mtime - renewed, 0.0)


def lock_path(directory: Path, run: str) -> Path:
    """Return the file that a run holds locked while it lives."""
    return directory / f"{run}.lock"


def lives(directory: Path, run: str) -> bool:
    """Say whether a process holds the lock of a run's claims; changes nothing."""
    try:
        descriptor = os.open(lock_path(directory, run), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def open_lock(path: Path) -> int | None:
    """Take a lock file exclusively, or return None when somebody holds it.

    Who only asks whether a run lives holds it for a moment: that is waited for.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    deadline = time.monotonic() + LOOK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                return None
            time.sleep(LOOK_SECONDS / 20)
        else:
            return descriptor

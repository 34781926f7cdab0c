"""Whether a run lives: what proves it from here, and elsewhere the sign of life that it renews.

Its lock, or its process, proves life and death on one host, boot and pid namespace. Elsewhere the time of its lock
file, or of an object, tells when a run last gave a sign of life. That time and the one that it is compared with
are both by the clock of the file server or object store: hosts whose clocks differ are no matter.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import threading
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hsstore.activity import tick
from hsstore.errors import OutputError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hsstore.claim import Claim, ClaimPlace

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
    """Renews a sign of life again and again, from a thread of its own: it may hang alone."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew = renew
        self._ended = threading.Event()
        thread = threading.Thread(target=self._run, name="beat", daemon=True)
        thread.start()

    def end(self) -> None:
        """Beat no more. Does not wait for a disk that does not answer."""
        self._ended.set()

    def _run(self) -> None:
        # Not an `operation`: that would count as progress of a run that makes none.
        while not self._ended.wait(BEAT_SECONDS):
            self._renew()


class Others:
    """What one run can tell of the life of others.

    Parameters
    ----------
    place : ClaimPlace
        Where the claims are.
    take_over : bool
        Whether long silence is enough where death cannot be proven.
    """

    def __init__(self, place: ClaimPlace, me: Claim, *, take_over: bool) -> None:
        self._place = place
        self._me = me
        self._take_over = take_over
        self._silent: dict[str, float] = {}
        """Runs that were listened to in vain, with their last sign."""
        self._ended = threading.Event()

    def end(self) -> None:
        """Wait for nobody any more."""
        self._ended.set()

    @contextmanager
    def proof_of_death(self, owner: Claim, *, patient: bool = True) -> Iterator[None]:
        """Make sure that a run is dead; of several who want its claims, one gets them.

        Parameters
        ----------
        patient : bool
            Where it may be taken over, wait until it has been silent for long enough; else only listen to one that has.

        Raises
        ------
        RefusedError
            It lives, or may live; the message says what to do.
        """
        perhaps = self.reach(owner) or (self._take_over and self._is_silent(owner, patient=patient))
        held = self._place.held_dead(owner, insist=self._take_over)
        with held if perhaps else nullcontext(enter_result=False) as is_dead:
            if not is_dead:
                raise RefusedError(self.refusal(owner))
            yield

    def reach(self, owner: Claim) -> bool:
        """Whether it can be proven from here if a run lives."""
        return owner.shares_locks_with(self._me)

    def silence_seconds(self, owner: Claim) -> float:
        """Return for how long a run has given no sign of life; 0 where it is proven to live.

        Raises
        ------
        OutputError, UnreachableError
        """
        if self.reach(owner):
            return 0.0 if self._place.is_alive(owner) else math.inf
        renewed, now = self._place.last_signs(owner)
        return max(now - renewed, 0.0)

    def refusal(self, owner: Claim) -> str:
        """Say that a run is in the way, and what to do."""
        text = (
            f"this store is being written by {owner.who}; wait for it, or stop it, then run again"
        )
        if self.reach(owner):
            return text
        text = f"{text}. {self.last_sign(owner)}"
        return f"{text}. {self._place.still_held if self._take_over else ON_DEMAND}"

    def last_sign(self, owner: Claim) -> str:
        """Say when a run was last heard of."""
        try:
            silent = self.silence_seconds(owner)
        except (OutputError, UnreachableError) as error:
            return f"When it last gave a sign of life is not known: {error}"
        if silent == math.inf:
            return "It gives no sign of life"
        return f"Its last sign of life came {silent:.0f} s ago, by {self._place.clock}"

    def _is_silent(self, owner: Claim, *, patient: bool) -> bool:
        """Say whether a run was silent for long, and stays so while we listen.

        A file server that did not answer for a while has silenced all: who lives is heard soon after.
        """
        renewed, now = self._place.last_signs(owner)
        if self._silent.get(owner.run) == renewed:
            return True
        if not patient and now - renewed < SILENT_SECONDS:
            return False
        log.info("taking over from %s, if it is silent for %.0f s", owner.who, SILENT_SECONDS)
        since = looked = time.monotonic()
        while now - renewed < SILENT_SECONDS or looked - since < 2 * BEAT_SECONDS:
            if self._ended.wait(LISTEN_SECONDS):
                return False
            tick()
            last, now = self._place.last_signs(owner)
            if last != renewed:
                return False
            before, looked = looked, time.monotonic()
            if looked - before > BEAT_SECONDS:  # nobody was answered meanwhile
                since = looked
        self._silent[owner.run] = renewed
        return True


def began_ticks(pid: int) -> int:
    """Return when a process began, in the kernel's ticks since its boot.

    Raises
    ------
    OSError
    """
    return int(_stat(pid)[19])


def process_lives(pid: int, began: int) -> bool:
    """Say whether the process that had this id, and began then, may live."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's: it is there
        pass
    try:
        state, *fields = _stat(pid)
    except OSError:  # other users' processes may be hidden
        return True
    return state not in {"Z", "X"} and int(fields[18]) == began


def _stat(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5), from the third on: the second may have spaces in it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def lock_path(directory: Path, run: str) -> Path:
    """Return the file that a run holds locked while it lives."""
    return directory / f"{run}.lock"


def lives(directory: Path, run: str) -> bool:
    """Say whether a process may hold the lock of a run's claims; changes nothing."""
    try:
        descriptor = os.open(lock_path(directory, run), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:  # no proof of anything
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # held; or there are no locks
        return True
    finally:
        os.close(descriptor)
    return False


def open_lock(path: Path, *, create: bool = True) -> int | None:
    """Take a lock file exclusively, or return None when somebody holds it.

    Who only asks whether a run lives holds it for a moment: that is waited for.

    Raises
    ------
    FileNotFoundError
        There is none, and it is not to be created.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, 0o666)
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

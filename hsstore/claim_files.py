"""Claims of a store that is a directory: files beside it, links, and locks.

::

    STORE.runs/claims/
    ├── <run>.lock        locked while the run lives; its time is renewed every few seconds
    ├── 17                who owns span 17
    └── worker-1-of-4     who is worker 1 of 4

A run holds a lock for its whole life; on the same host, boot and pid namespace a free lock proves
that the claim's owner is dead. The lock of the dead run is held while its claim is taken over, so that of
several heirs one wins.
"""

from __future__ import annotations

import math
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from typing_extensions import override

from hsstore.activity import operation
from hsstore.claim import ClaimPlace, Found, claim_or_none, read_claim
from hsstore.errors import HsstoreError, OutputError, RefusedError
from hsstore.files import (
    PARTIAL_SUFFIX,
    make_directory,
    output_errors,
    refresh_attributes,
    write_durably,
)
from hsstore.liveness import Beat, lives, lock_path, open_lock
from hsstore.spec import COMPLETION

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from pathlib import Path

    from hsstore.claim import Claim

LINKS_A_CLAIM = 1000
"""Spans whose claims are one file under many names; file systems allow some ten thousand."""


class ClaimFiles(ClaimPlace):
    """The claims of one run beside a store on a file system.

    Parameters
    ----------
    directory : Path
        For the claims.

    Raises
    ------
    RefusedError
        The run is going on already.
    OutputError
    """

    clock = "the file server's clock"
    still_held = (
        "It is taken over when it has been silent for a while and nobody holds its lock. NFS v3 keeps the lock of a "
        "host that died until that host boots again: clear it at the file server then"
    )

    def __init__(self, store: Path, directory: Path, me: Claim) -> None:
        self._store = store
        self._directory = directory
        self.me = me
        with output_errors(directory):
            make_directory(directory)
            self._lock = open_lock(self._mine)
        if self._lock is None:
            raise RefusedError(f"run {me.run} is already going on")
        with output_errors(self._mine), operation("fsync", self._mine):
            # So that every claim is one more name of this file, which costs no fsync.
            os.pwrite(self._lock, me.text(), 0)
            os.fsync(self._lock)
        self._claim = self._mine
        self._links = 0
        self._beat = Beat(self._renew)

    @override
    def take(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if not self._take(name)]

    def _take(self, name: str) -> bool:
        path = self._directory / name
        with output_errors(path):
            try:
                path.hardlink_to(self._written())  # exclusive, and never half written
            except FileExistsError:
                # A network file system may say so of what it has done itself, when asked twice.
                return read_claim(path) == self.me
        return True

    @override
    def read(self, name: str) -> Found | None:
        claim = read_claim(self._directory / name)
        return Found(claim) if claim else None

    @override
    def read_anew(self, name: str) -> Found | None:
        # NFS v3 may read the old file under a name that an heir has given to another.
        refresh_attributes(self._directory)
        return self.read(name)

    @override
    def names(self) -> list[str]:
        with output_errors(self._directory):
            return [path.name for path in self._directory.iterdir()]

    @override
    def inherit(self, name: str, found: Found) -> None:
        path, heir = self._directory / name, self._directory / f".{self.me.run}.{name}"
        with output_errors(path):
            if self.read(name) == found:
                with suppress(FileExistsError):  # likewise
                    heir.hardlink_to(self._written())
                with suppress(FileNotFoundError):
                    heir.replace(path)

    @override
    def give(self, names: Sequence[str]) -> None:
        error: HsstoreError | None = None
        for name in names:
            try:
                self._give(name)
            except (OutputError, RefusedError) as one:
                error = one
        if error is not None:
            raise error

    def _give(self, name: str) -> None:
        path = self._directory / name
        with output_errors(path):
            found = self.read_anew(name)
            if found is not None and found.claim == self.me:
                with operation("unlink", path):
                    path.unlink(missing_ok=True)

    @override
    def remove(self, name: str, found: Found) -> None:
        path = self._directory / name
        with output_errors(path):
            if self.read(name) == found:
                path.unlink(missing_ok=True)

    @override
    def is_alive(self, owner: Claim) -> bool:
        return lives(self._directory, owner.run)

    @override
    def last_signs(self, owner: Claim) -> tuple[float, float]:
        theirs = lock_path(self._directory, owner.run)
        with output_errors(self._mine):
            os.utime(self._mine)
            for one in (self._mine, theirs):
                refresh_attributes(one)
            try:
                renewed = theirs.stat().st_mtime
            except FileNotFoundError:
                renewed = -math.inf
            return renewed, self._mine.stat().st_mtime

    @override
    @contextmanager
    def held_dead(self, owner: Claim, *, insist: bool) -> Iterator[bool]:
        lock = None
        path = lock_path(self._directory, owner.run)
        with output_errors(path), suppress(FileNotFoundError):
            # A lock file that is not there proves nothing: somebody has removed it.
            lock = open_lock(path, create=insist)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    @override
    def sweep(self, spans: Container[int], span_of: Callable[[int], int | None]) -> None:
        with output_errors(self._store):
            for partial in self._store.glob(f"hidden_states/c.*{PARTIAL_SUFFIX}"):
                if span_of(_chunk_number(partial)) in spans:
                    partial.unlink(missing_ok=True)
            for name in COMPLETION:
                for partial in self._store.glob(f"{name}/c.*{PARTIAL_SUFFIX}"):
                    if _chunk_number(partial) in spans:
                        partial.unlink(missing_ok=True)
            records = self._store / "runs"
            for partial in records.rglob(f"*{PARTIAL_SUFFIX}"):
                if self._is_dead(partial.relative_to(records).parts[0]):
                    partial.unlink(missing_ok=True)

    @override
    def end(self) -> None:
        self._beat.end()

    @override
    def close(self, *, clean: bool) -> None:
        if self._lock is None:
            return
        with suppress(OSError, OutputError):
            (self._directory / f".{self.me.run}").unlink(missing_ok=True)
            # What could not be given back is inherited by who finds this lock free.
            if clean:
                self._mine.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None

    def _is_dead(self, run: str) -> bool:
        """Say whether it is proven from here that a run is dead; its lock file says where it ran."""
        owner = claim_or_none(lock_path(self._directory, run))
        return owner is not None and owner.shares_locks_with(self.me) and not self.is_alive(owner)

    def _renew(self) -> None:
        with suppress(OSError):  # the disk's errors are told by whoever writes data there
            os.utime(self._mine)

    def _written(self) -> Path:
        """Return a file that is our claim, with room for another name."""
        self._links += 1
        if self._links % LINKS_A_CLAIM == 0:
            self._claim = self._directory / f".{self.me.run}"
            write_durably(self._claim, self.me.text())
        return self._claim

    @property
    def _mine(self) -> Path:
        return lock_path(self._directory, self.me.run)


def _chunk_number(path: Path) -> int:
    """Return k of a file `c.<k>...`."""
    return int(path.name.split(".")[1])

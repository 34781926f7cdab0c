"""Who may write which span: one claim file a span, beside the store.

::

    STORE.runs/claims/
    ├── <run>.lock        locked while the run lives; its time is renewed every few seconds
    ├── 17                who owns span 17
    └── worker-1-of-4     who is worker 1 of 4

A claim is created exclusively before the span is written, so no two runs ever write one file. A
run holds a lock for its whole life; on the same host, boot and pid namespace a free lock proves
that the claim's owner is dead, and only then is the claim taken over. The lock of the dead run is
held meanwhile, so that of several heirs one wins. Where locks do not reach, a claim is taken over
only on demand, and only from a run that has given no sign of life for a while.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Self

from hsstore.activity import operation
from hsstore.claim import Claim, read_claim, read_claims
from hsstore.errors import OutputError, RefusedError
from hsstore.files import PARTIAL_SUFFIX, make_directory, output_errors, write_durably
from hsstore.liveness import Beat, Others, lives, lock_path, open_lock
from hsstore.spec import COMPLETION

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from pathlib import Path

    from hsstore.store import Store

__all__ = ["Claim", "Claims", "claims_of", "lives", "read_claims"]

LINKS_A_CLAIM = 1000
"""Spans whose claims are one file under many names; file systems allow some ten thousand."""
_PLACE = "worker-"


def claims_of(store: Store) -> Path:
    """Return where spans are claimed: beside the store itself, also for who comes through a link."""
    real = store.path.resolve()
    return real.with_name(f"{real.name}.runs") / "claims"


class Claims:
    """The claims of one run on one store; a context manager that gives them back.

    Parameters
    ----------
    run : str
        Identity of the run, unique.
    take_over : bool
        Take claims also where the death of their owner cannot be proven from here: it made them
        on another host, before a reboot, or in another container. It must have been silent for
        `SILENT_SECONDS`, which is waited for.
    worker : str
        Which of several workers on this store the run is, such as 1/4.
    """

    def __init__(
        self, store: Store, run: str, *, take_over: bool = False, worker: str = ""
    ) -> None:
        self._store = store
        self._me = Claim.of_this_process(run, worker)
        self._directory = claims_of(store)
        self.others = Others(self._directory, self._me, take_over=take_over)
        self._held: set[int] = set()
        self._place: Path | None = None
        self._alone = Lock()
        with output_errors(self._directory):
            make_directory(self._directory)
            self._lock = open_lock(self._lock_path(run))
        if self._lock is None:
            raise RefusedError(f"run {run} is already going on")
        self._beat = Beat(self._lock_path(run))

    # --- the whole store ----------------------------------------------------------------------

    def take(self, spans: Iterable[int]) -> None:
        """Claim spans, and remove what dead runs left unpublished in their shards.

        Claims of dead runs on other spans are inherited too, so that they are given back one day.

        Raises
        ------
        RefusedError
            Another run owns one of them; the message names it.
        """
        wanted = list(spans)
        with self._alone:
            for first in range(0, len(wanted), LINKS_A_CLAIM):
                with self._written() as mine:
                    for span in wanted[first : first + LINKS_A_CLAIM]:
                        self._take(self._path(span), mine)
                        self._held.add(span)
            self._remove_leftovers(self._held | self._take_from_the_dead())

    def refuse_workers(self) -> None:
        """Make sure that no worker is at work; what dead ones left of their numbers is removed.

        Raises
        ------
        RefusedError
            It names one.
        """
        try:
            with output_errors(self._directory):
                for path in self._directory.glob(f"{_PLACE}*"):
                    self._remove_if_dead(path)
        except RefusedError as error:
            raise RefusedError(
                "workers extract into this store: start this run with --worker too, and it works "
                f"beside them. {error}"
            ) from error

    # --- a worker's part of it ----------------------------------------------------------------

    def take_place(self) -> None:
        """Be the worker of this number, which nobody else is.

        Raises
        ------
        RefusedError
            Somebody else is, or a run that is no worker writes the store.
        """
        number = self._me.worker
        place = self._directory / (_PLACE + number.replace("/", "-of-"))
        with output_errors(place):
            self._sign_lock()
            try:
                self._take(place, self._lock_path(self._me.run))
            except RefusedError as error:
                raise RefusedError(f"worker {number} is there already: {error}") from error
            self._place = place
            for path in self._directory.glob(f"{_PLACE}*"):
                with suppress(RefusedError):
                    self._remove_if_dead(path, patient=False)
        for claim, _ in read_claims(self._directory).values():
            if not claim.worker:
                self._refuse_beside(claim)

    def try_to_take(self, span: int) -> bool:
        """Claim a span; return False where it is another's who lives, or may live.

        Costs no fsync: the claim is one more name of the lock file, which says whose it is.
        """
        path = self._path(span)
        with self._alone, output_errors(path):
            if self._lock is None:  # all was given back, while we waited for our turn
                return False
            try:
                self._take(path, self._lock_path(self._me.run), patient=False)
            except RefusedError:
                return False
            self._held.add(span)
            self._remove_leftovers({span})
            return True

    def give(self, span: int) -> None:
        """Give one claim back."""
        path = self._path(span)
        with self._alone, output_errors(path):
            self._give(path)
            self._held.discard(span)

    def take_again(self, span: int) -> None:
        """Make sure that a span is ours, also one that was given back.

        Raises
        ------
        RefusedError
            Somebody else has it now.
        """
        if span not in self._held:
            self.try_to_take(span)
        self.check(span)

    def bury(self) -> None:
        """Inherit all claims of dead runs: they are given back with our own."""
        with self._alone, output_errors(self._directory):
            # Not in what we held before: there our own blocks may be open.
            self._remove_leftovers(self._take_from_the_dead())

    def owner(self, span: int) -> Claim | None:
        """Return who has a span.

        Raises
        ------
        RefusedError
            The claim is damaged; the message names its file.
        """
        return read_claim(self._path(span))

    # --- both ---------------------------------------------------------------------------------

    def check(self, span: int) -> None:
        """Make sure that a span still belongs to this run.

        Raises
        ------
        RefusedError
        """
        owner = self.owner(span)
        if owner != self._me:
            raise RefusedError(
                f"span {span} was taken over by {owner.who if owner else 'nobody'} while this run was writing it; "
                "this run has written nothing since"
            )

    def release(self) -> None:
        """Give all claims back; also what a clean end of a run does."""
        self._beat.end()
        with self._alone:
            # On a broken disk a claim stays: its lock is free, so the next run inherits it.
            for path in [*map(self._path, sorted(self._held)), self._place]:
                with suppress(OSError, RefusedError, OutputError):
                    self._give(path)
            self._held.clear()
            self._place = None
            if self._lock is not None:
                with suppress(OSError):
                    self._lock_path(self._me.run).unlink(missing_ok=True)
                os.close(self._lock)
                self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @contextmanager
    def _written(self) -> Iterator[Path]:
        """Write a claim that is durable before its first link: one fsync for many spans."""
        mine = self._directory / f".{self._me.run}"
        with output_errors(mine):
            write_durably(mine, self._me.text())
            try:
                yield mine
            finally:
                mine.unlink(missing_ok=True)

    def _sign_lock(self) -> None:
        """Let the lock file be a claim as well, for others' eyes under the names that it gets."""
        if self._lock is not None:
            with operation("fsync", self._lock_path(self._me.run)):
                os.pwrite(self._lock, self._me.text(), 0)
                os.fsync(self._lock)

    def _take(self, path: Path, mine: Path, *, patient: bool = True) -> None:
        taken = False
        while not taken:
            try:
                path.hardlink_to(mine)  # exclusive, and never half written
                taken = True
            except FileExistsError:
                owner = read_claim(path)
                # Ours: a network file system may say so of what it has done itself, when asked twice.
                taken = owner == self._me or self._inherit(path, owner, mine, patient=patient)

    def _take_from_the_dead(self) -> set[int]:
        """Claim what the dead had, and return it."""
        before = set(self._held)
        claimed = {int(path.name) for path in self._directory.iterdir() if path.name.isdigit()}
        for span in sorted(claimed - self._held):
            # Refused: its owner lives, perhaps. Nothing that we need.
            with suppress(RefusedError), self._written() as mine:
                self._take(self._path(span), mine, patient=False)
                self._held.add(span)
        return self._held - before

    def _inherit(self, path: Path, owner: Claim | None, mine: Path, *, patient: bool) -> bool:
        """Take a dead run's claim; return False where there is none any more."""
        if owner is None:
            return False
        with self.others.proof_of_death(owner, patient=patient):
            now = read_claim(path)
            if now == owner:
                heir = self._directory / f".{self._me.run}.{path.name}"
                heir.hardlink_to(mine)
                heir.replace(path)
            elif now is not None:
                raise RefusedError(self.others.refusal(now))
            return now is not None

    def _remove_if_dead(self, path: Path, *, patient: bool = True) -> None:
        owner = read_claim(path)
        if owner is None or owner == self._me:
            return
        with self.others.proof_of_death(owner, patient=patient):
            if read_claim(path) == owner:
                path.unlink(missing_ok=True)

    def _refuse_beside(self, owner: Claim) -> None:
        """Refuse to work beside a run that is no worker, unless it is dead."""
        try:
            with self.others.proof_of_death(owner):
                pass
        except RefusedError as error:
            raise RefusedError(
                f"a run without --worker has this store alone, and workers cannot work beside it: {error}"
            ) from error

    def _remove_leftovers(self, spans: Container[int]) -> None:
        """Remove what dead runs did not publish in spans that this run has just claimed."""
        root = self._store.path
        with output_errors(root):
            for partial in root.glob(f"hidden_states/c.*{PARTIAL_SUFFIX}"):
                if self._span_of_shard(_chunk_number(partial)) in spans:
                    partial.unlink(missing_ok=True)
            for name in COMPLETION:
                for partial in root.glob(f"{name}/c.*{PARTIAL_SUFFIX}"):
                    if _chunk_number(partial) in spans:
                        partial.unlink(missing_ok=True)

    def _span_of_shard(self, shard: int) -> int | None:
        layout = self._store.layout
        block = int(layout.block_shard.searchsorted(shard, side="right")) - 1
        return layout.block(block).span if block < layout.blocks else None

    def _give(self, path: Path | None) -> None:
        if path is not None and read_claim(path) == self._me:
            with operation("unlink", path):
                path.unlink(missing_ok=True)

    def _path(self, span: int) -> Path:
        return self._directory / str(span)

    def _lock_path(self, run: str) -> Path:
        return lock_path(self._directory, run)


def _chunk_number(path: Path) -> int:
    """Return k of a file `c.<k>...`."""
    return int(path.name.split(".")[1])

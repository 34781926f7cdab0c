"""Who may write which span: a claim for each, beside the store.

A claim is created exclusively before the span is written, so no two runs ever write one file. It is taken over only
where its owner's death is proven: by its lock, or its process, on the same host, boot and pid namespace. Elsewhere
it is taken over only on demand, and only from a run that has given no sign of life for a while.

Claims of a directory are files (`claim_files`), those of a store under a URL objects (`claim_objects`). There nothing
that was written depends on them: every put says what it replaces. They save the work of doing things twice.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Self

from hsstore.claim import Claim, ClaimPlace, Found, read_claims
from hsstore.claim_files import ClaimFiles
from hsstore.errors import HsstoreError, RefusedError
from hsstore.liveness import Others, lives
from hsstore.location import RemotePath

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence
    from pathlib import Path

    from hsstore.store import Store

__all__ = [
    "Claim",
    "Claims",
    "claims_of",
    "is_dead_here",
    "lives",
    "owners_of",
    "read_claims",
]

_PLACE = "worker-"


def claims_of(store: Store) -> Path:
    """Return where spans are claimed: beside the store itself, also for who comes through a link."""
    real = store.path.resolve()
    return real.with_name(f"{real.name}.runs") / "claims"


def owners_of(store: Store) -> dict[str, tuple[Claim, int]]:
    """Return, by run, its claim, and how many spans it has; of a store under a URL the claims are listed."""
    if isinstance(store.location, RemotePath):
        from hsstore.claim_objects import read_claims_at  # noqa: PLC0415  # brings fsspec

        return read_claims_at(store.location)
    return read_claims(claims_of(store))


def is_dead_here(store: Store, owner: Claim, me: Claim) -> bool:
    """Say whether it is proven from here that the owner of a claim is dead."""
    if not owner.shares_locks_with(me):
        return False
    if isinstance(store.location, RemotePath):
        from hsstore.claim_objects import is_alive  # noqa: PLC0415  # brings fsspec

        return not is_alive(owner)
    return not lives(claims_of(store), owner.run)


def _open_place(store: Store, me: Claim, say: Callable[[], bytes] | None) -> ClaimPlace:
    if isinstance(store.location, RemotePath):
        from hsstore.claim_objects import ClaimObjects  # noqa: PLC0415  # brings fsspec

        return ClaimObjects(store.location, me, say)
    return ClaimFiles(store.path, claims_of(store), me)


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
    say : callable, optional
        Returns what the run says of itself; beside a store under a URL that is its sign of life.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        take_over: bool = False,
        worker: str = "",
        say: Callable[[], bytes] | None = None,
    ) -> None:
        self._store = store
        self._place = _open_place(store, Claim.of_this_process(run, worker), say)
        self._me = self._place.me
        self.others = Others(self._place, self._me, take_over=take_over)
        self._held: set[int] = set()
        self._number = ""
        """The name of this worker's number, once it is taken."""
        self._released = False
        self._alone = Lock()

    # --- the whole store ----------------------------------------------------------------------

    def take(self, spans: Iterable[int]) -> None:
        """Claim spans, and remove what dead runs left unpublished in their shards.

        Claims of dead runs on other spans are inherited too, so that they are given back one day.

        Raises
        ------
        RefusedError
            Another run owns one of them; the message names it.
        """
        with self._alone:
            self._take_spans(list(spans))
            self._sweep(self._held | self._take_from_the_dead())

    def refuse_workers(self) -> None:
        """Make sure that no worker is at work; what dead ones left of their numbers is removed.

        Raises
        ------
        RefusedError
            It names one.
        """
        try:
            for name in self._numbers():
                self._remove_if_dead(name)
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
        name = _PLACE + number.replace("/", "-of-")
        try:
            for taken in self._place.take([name]):
                self._take_from(taken)
        except RefusedError as error:
            raise RefusedError(f"worker {number} is there already: {error}") from error
        self._number = name
        for other in self._numbers():
            with suppress(RefusedError):
                self._remove_if_dead(other, patient=False)
        for owner, _ in owners_of(self._store).values():
            if not owner.worker:
                self._refuse_beside(owner)

    def try_to_take(self, span: int) -> bool:
        """Claim a span; return False where it is another's who lives, or may live."""
        with self._alone:
            if self._released:  # all was given back, while we waited for our turn
                return False
            try:
                self._take_spans([span], patient=False)
            except RefusedError:
                return False
            self._sweep({span})
            return True

    def give(self, span: int) -> None:
        """Give one claim back."""
        with self._alone:
            self._place.give([str(span)])
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
        with self._alone:
            # Not in what we held before: there our own blocks may be open.
            self._sweep(self._take_from_the_dead())

    def owner(self, span: int) -> Claim | None:
        """Return who has a span.

        Raises
        ------
        RefusedError
            The claim is damaged; the message names its file.
        """
        return _claim_of(self._place.read(str(span)))

    # --- both ---------------------------------------------------------------------------------

    def check(self, span: int) -> None:
        """Make sure that a span still belongs to this run.

        Raises
        ------
        RefusedError
        """
        owner = _claim_of(self._place.read_anew(str(span)))
        if owner != self._me:
            raise RefusedError(
                f"span {span} was taken over by {owner.who if owner else 'nobody'} while this run was writing it; "
                "this run writes nothing more there"
            )

    def has_shard(self, shard: int) -> bool:
        """Say whether a shard lies in a span that still belongs to this run."""
        span = self._span_of_shard(shard)
        if span is None:
            return False
        try:
            self.check(span)
        except RefusedError:
            return False
        return True

    def release(self) -> None:
        """Give all claims back; also what a clean end of a run does."""
        self._place.end()
        self.others.end()
        with self._alone:
            if self._released:
                return
            names = [*map(str, sorted(self._held)), *filter(None, [self._number])]
            # Where that fails a claim stays: its owner is dead then, so the next run inherits it.
            self._place.close(clean=self._give_all(names))
            self._held.clear()
            self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _give_all(self, names: Sequence[str]) -> bool:
        try:
            self._place.give(names)
        except HsstoreError:
            return False
        return True

    def _take_spans(self, spans: Sequence[int], *, patient: bool = True) -> None:
        taken = self._place.take([str(span) for span in spans])
        self._held.update(set(spans) - set(map(int, taken)))
        for name in taken:
            self._take_from(name, patient=patient)
            self._held.add(int(name))

    def _take_from(self, name: str, *, patient: bool = True) -> None:
        """Take a name that was somebody else's: of a dead run, or given back by now."""
        while True:
            owner = self._place.read(name)
            if owner is not None:
                with self.others.proof_of_death(owner.claim, patient=patient):
                    self._place.inherit(name, owner)
            elif not self._place.take([name]):
                return
            if _claim_of(self._place.read(name)) == self._me:
                return

    def _take_from_the_dead(self) -> set[int]:
        """Claim what the dead had, and return it."""
        before = set(self._held)
        for span in sorted({int(name) for name in self._place.names() if name.isdigit()} - before):
            # Refused: its owner lives, perhaps. Nothing that we need.
            with suppress(RefusedError):
                if self._place.read(str(span)) is not None:
                    self._take_from(str(span), patient=False)
                    self._held.add(span)
        return self._held - before

    def _remove_if_dead(self, name: str, *, patient: bool = True) -> None:
        owner = self._place.read(name)
        if owner is None or owner.claim == self._me:
            return
        with self.others.proof_of_death(owner.claim, patient=patient):
            self._place.remove(name, owner)

    def _refuse_beside(self, owner: Claim) -> None:
        """Refuse to work beside a run that is no worker, unless it is dead."""
        try:
            with self.others.proof_of_death(owner):
                pass
        except RefusedError as error:
            raise RefusedError(
                f"a run without --worker has this store alone, and workers cannot work beside it: {error}"
            ) from error

    def _numbers(self) -> list[str]:
        return [name for name in self._place.names() if name.startswith(_PLACE)]

    def _sweep(self, spans: Container[int]) -> None:
        """Remove what dead runs did not publish in spans that this run has just claimed."""
        self._place.sweep(spans, self._span_of_shard)

    def _span_of_shard(self, shard: int) -> int | None:
        layout = self._store.layout
        block = int(layout.block_shard.searchsorted(shard, side="right")) - 1
        return layout.block(block).span if block < layout.blocks else None


def _claim_of(found: Found | None) -> Claim | None:
    return found.claim if found else None

"""Who may write which span: one claim file a span, beside the store.

A claim is created exclusively before the span is written, so no two runs ever write one file. A
run holds a lock for its whole life; on the same host, boot and pid namespace a free lock proves
that the claim's owner is dead, and only then is the claim taken over. The lock of the dead run is
held meanwhile, so that of several heirs one wins.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import ValidationError

from hsstore.activity import operation
from hsstore.errors import RefusedError
from hsstore.files import PARTIAL_SUFFIX, make_directory, output_errors, write_durably
from hsstore.spec import COMPLETION, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hsstore.store import Store


LINKS_A_CLAIM = 1000
"""Spans whose claims are one file under many names; file systems allow some ten thousand."""


LOOK_SECONDS = 0.2
"""So long somebody may hold a lock who only looks at it."""


class Claim(Record):
    """The content of a claim file: who owns the span."""

    run: str
    host: str
    boot: str
    """Kernel boot id: after a reboot no process of before is alive."""
    pid_namespace: str
    pid: int
    since: str

    @classmethod
    def of_this_process(cls, run: str) -> Claim:
        """Describe this process."""
        return cls(
            run=run,
            host=socket.gethostname(),
            boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            pid_namespace=str(Path("/proc/self/ns/pid").readlink()),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def shares_locks_with(self, other: Claim) -> bool:
        """Say whether a free lock of one proves to the other that it is dead."""
        return (self.host, self.boot, self.pid_namespace) == (
            other.host,
            other.boot,
            other.pid_namespace,
        )


class Claims:
    """The claims of one run on one store; a context manager that gives them back.

    Parameters
    ----------
    run : str
        Identity of the run, unique.
    take_over : bool
        Take claims also where the death of their owner cannot be proven from here: it made them
        on another host, before a reboot, or in another container.
    """

    def __init__(self, store: Store, run: str, *, take_over: bool = False) -> None:
        self._store = store
        self._take_over = take_over
        self._me = Claim.of_this_process(run)
        self._directory = store.runs_path / "claims"
        self._held: set[int] = set()
        with output_errors(self._directory):
            make_directory(self._directory)
            self._lock = _open_lock(self._lock_path(run))
        if self._lock is None:
            raise RefusedError(f"run {run} is already going on")

    def take(self, spans: Iterable[int]) -> None:
        """Claim spans, and remove what dead runs left unpublished in their shards.

        Claims of dead runs on other spans are inherited too, so that they are given back one day.

        Raises
        ------
        RefusedError
            Another run owns one of them; the message names it.
        """
        wanted = list(spans)
        for first in range(0, len(wanted), LINKS_A_CLAIM):
            with self._written() as mine:
                for span in wanted[first : first + LINKS_A_CLAIM]:
                    self._take(span, mine)
        self._take_from_the_dead()
        self._remove_leftovers()

    def check(self, span: int) -> None:
        """Make sure that a span still belongs to this run.

        Raises
        ------
        RefusedError
        """
        owner = self._read(span)
        if owner != self._me:
            raise RefusedError(
                f"span {span} was taken over by {_who(owner)} while this run was writing it; "
                "this run has written nothing since"
            )

    def release(self) -> None:
        """Give all claims back; also what a clean end of a run does."""
        for span in sorted(self._held):
            # On a broken disk a claim stays: its lock is free, so the next run inherits it.
            with suppress(OSError, RefusedError):
                if self._read(span) == self._me:
                    with operation("unlink", self._path(span)):
                        self._path(span).unlink(missing_ok=True)
        self._held.clear()
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
            write_durably(mine, self._me.model_dump_json().encode())
            try:
                yield mine
            finally:
                mine.unlink(missing_ok=True)

    def _take(self, span: int, mine: Path) -> None:
        try:
            self._path(span).hardlink_to(mine)  # exclusive, and never half written
        except FileExistsError:
            self._inherit(span, mine)
        self._held.add(span)

    def _take_from_the_dead(self) -> None:
        claimed = {int(path.name) for path in self._directory.iterdir() if path.name.isdigit()}
        for span in sorted(claimed - self._held):
            # Refused: its owner lives, perhaps. Nothing that we need.
            with suppress(RefusedError), self._written() as mine:
                self._take(span, mine)

    def _inherit(self, span: int, mine: Path) -> None:
        owner = self._read(span)
        with self._proof_of_death(owner):
            now = self._read(span)
            if now is None:  # given back this moment
                self._path(span).hardlink_to(mine)
            elif now == owner:
                heir = mine.with_name(f"{mine.name}.{span}")
                heir.hardlink_to(mine)
                heir.replace(self._path(span))
            else:
                raise RefusedError(self._refusal(now))

    @contextmanager
    def _proof_of_death(self, owner: Claim | None) -> Iterator[None]:
        if owner is None:
            yield
            return
        lock = None
        if self._take_over or owner.shares_locks_with(self._me):
            lock = _open_lock(self._lock_path(owner.run))
        if lock is None:
            raise RefusedError(self._refusal(owner))
        try:
            yield
        finally:
            os.close(lock)

    def _refusal(self, owner: Claim) -> str:
        text = (
            f"this store is being written by {_who(owner)}; wait for it, or stop it, then run again"
        )
        if self._take_over or owner.shares_locks_with(self._me):
            return text
        return (
            f"{text}. Whether it lives cannot be told from here (another host, boot or container): "
            "if you are sure that it is dead, run again with --take-over"
        )

    def _remove_leftovers(self) -> None:
        """Remove what dead runs did not publish in the spans that this run owns."""
        root = self._store.path
        with output_errors(root):
            for partial in root.glob(f"hidden_states/c.*{PARTIAL_SUFFIX}"):
                if self._span_of_shard(_chunk_number(partial)) in self._held:
                    partial.unlink(missing_ok=True)
            for name in COMPLETION:
                for partial in root.glob(f"{name}/c.*{PARTIAL_SUFFIX}"):
                    if _chunk_number(partial) in self._held:
                        partial.unlink(missing_ok=True)

    def _span_of_shard(self, shard: int) -> int | None:
        layout = self._store.layout
        block = int(layout.block_shard.searchsorted(shard, side="right")) - 1
        return layout.block(block).span if block < layout.blocks else None

    def _read(self, span: int) -> Claim | None:
        try:
            with operation("read", self._path(span)):
                return Claim.model_validate_json(self._path(span).read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise RefusedError(f"{self._path(span)} is not a claim: {error}; remove it") from error

    def _path(self, span: int) -> Path:
        return self._directory / str(span)

    def _lock_path(self, run: str) -> Path:
        return self._directory / f"{run}.lock"


def read_claims(directory: Path) -> dict[str, tuple[Claim, int]]:
    """Return, by run, its claim, and how many spans it has; nothing where there are none."""
    found: dict[str, tuple[Claim, int]] = {}
    with suppress(OSError):  # no directory
        for path in directory.iterdir():
            claim = _claim_or_none(path) if path.name.isdigit() else None
            if claim is not None:
                found[claim.run] = (claim, found.get(claim.run, (claim, 0))[1] + 1)
    return found


def _claim_or_none(path: Path) -> Claim | None:
    try:
        return Claim.model_validate_json(path.read_bytes())
    except (
        OSError,
        ValueError,
    ):  # given back just now; or damaged, as a run that wants it will say
        return None


def lives(directory: Path, run: str) -> bool:
    """Say whether a process holds the lock of a run's claims; changes nothing."""
    try:
        descriptor = os.open(directory / f"{run}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open_lock(path: Path) -> int | None:
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


def _chunk_number(path: Path) -> int:
    """Return k of a file `c.<k>...`."""
    return int(path.name.split(".")[1])


def _who(owner: Claim | None) -> str:
    if owner is None:
        return "nobody"
    return f"run {owner.run} (pid {owner.pid} on {owner.host}, since {owner.since})"

"""One claim: who owns a span, or is a worker of some number, as a small file or object says it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import ValidationError

from hsstore.activity import operation
from hsstore.errors import RefusedError
from hsstore.files import output_errors, read_again_if_stale
from hsstore.spec import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence
    from contextlib import AbstractContextManager


class Claim(Record):
    """The content of a claim: who owns the span, or the worker's number."""

    run: str
    host: str
    boot: str
    """Kernel boot id: after a reboot no process of before is alive."""
    pid_namespace: str
    pid: int
    since: str
    worker: str = ""
    """Such as 1/4; empty for a run that has the store alone."""
    began: int = 0
    """When the kernel began the process, in ticks since its boot: another process may get its pid. 0: not said."""

    @classmethod
    def of_this_process(cls, run: str, worker: str = "") -> Claim:
        """Describe this process."""
        return cls(
            run=run,
            host=socket.gethostname(),
            boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            pid_namespace=str(Path("/proc/self/ns/pid").readlink()),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            worker=worker,
        )

    @property
    def who(self) -> str:
        """The run, for people."""
        worker = f"worker {self.worker}, " if self.worker else ""
        return f"{worker}run {self.run} (pid {self.pid} on {self.host}, since {self.since})"

    def text(self) -> bytes:
        """Return the content of the file; what is not said is left out, as older versions want it."""
        return self.model_dump_json(exclude_defaults=True).encode()

    def shares_locks_with(self, other: Claim) -> bool:
        """Say whether one can prove that the other is dead: by its free lock, or its process."""
        return (self.host, self.boot, self.pid_namespace) == (
            other.host,
            other.boot,
            other.pid_namespace,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A claim as it was read."""

    claim: Claim
    version: str = ""
    """Of its object."""


class ClaimPlace(Protocol):
    """Where the claims of one run are, by names such as 17, of a span, and worker-1-of-4.

    All methods raise OutputError or UnreachableError, and RefusedError where something is no claim.
    """

    me: Claim
    clock: ClassVar[str]
    """By which signs of life have their times."""
    still_held: ClassVar[str]
    """Why a silent run may not be taken over yet, and what to do."""

    def take(self, names: Sequence[str]) -> list[str]:
        """Create our claim under names; return those that are somebody else's."""
        ...

    def read(self, name: str) -> Found | None:
        """Return who has a name."""
        ...

    def read_anew(self, name: str) -> Found | None:
        """Return who has a name, now."""
        ...

    def names(self) -> list[str]:
        """Return all names that may be claimed; others may be among them."""
        ...

    def inherit(self, name: str, found: Found) -> None:
        """Put our claim in the place of a dead run's, if that is still there."""
        ...

    def give(self, names: Sequence[str]) -> None:
        """Free names where the claim is ours."""
        ...

    def remove(self, name: str, found: Found) -> None:
        """Free the name of a dead run, if it is still its."""
        ...

    def is_alive(self, owner: Claim) -> bool:
        """Say whether a run lives of which that can be told from here."""
        ...

    def last_signs(self, owner: Claim) -> tuple[float, float]:
        """Return when a run last gave a sign of life, -inf if never, and what time it is, by one clock."""
        ...

    def held_dead(self, owner: Claim, *, insist: bool) -> AbstractContextManager[bool]:
        """Say whether nothing speaks against the death of a run, and keep other heirs out meanwhile."""
        ...

    def sweep(self, spans: Container[int], span_of: Callable[[int], int | None]) -> None:
        """Remove what dead runs have begun in spans that are ours; `span_of` gives that of a shard."""
        ...

    def end(self) -> None:
        """Give no sign of life any more. Does not wait for what does not answer."""
        ...

    def close(self, *, clean: bool) -> None:
        """Leave; `clean` says that all was given back."""
        ...


def read_claim(path: Path) -> Claim | None:
    """Read a claim; None where there is none.

    Raises
    ------
    RefusedError
        The file is damaged.
    OutputError
    """
    try:
        with output_errors(path), operation("read", path):
            try:
                return Claim.model_validate_json(read_again_if_stale(path.read_bytes))
            except FileNotFoundError:
                return None
    except ValidationError as error:
        raise RefusedError(f"{path} is not a claim: {error}; remove it") from error


def read_claims(directory: Path) -> dict[str, tuple[Claim, int]]:
    """Return, by run, its claim, and how many spans it has; nothing where there are none."""
    found: dict[str, tuple[Claim, int]] = {}
    with suppress(OSError):  # no directory
        for path in directory.iterdir():
            claim = claim_or_none(path) if path.name.isdigit() else None
            if claim is not None:
                found[claim.run] = (claim, found.get(claim.run, (claim, 0))[1] + 1)
    return found


def claim_or_none(path: Path) -> Claim | None:
    """Read a claim; None also where it is damaged, which a run that wants it will say."""
    try:
        return Claim.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None

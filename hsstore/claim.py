"""One claim: who owns a span, or is a worker of some number, as a small file says it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from hsstore.activity import operation
from hsstore.errors import RefusedError
from hsstore.files import output_errors, read_again_if_stale
from hsstore.spec import Record


class Claim(Record):
    """The content of a claim file: who owns the span, or the worker's number."""

    run: str
    host: str
    boot: str
    """Kernel boot id: after a reboot no process of before is alive."""
    pid_namespace: str
    pid: int
    since: str
    worker: str = ""
    """Such as 1/4; empty for a run that has the store alone."""

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
        """Say whether a free lock of one proves to the other that it is dead."""
        return (self.host, self.boot, self.pid_namespace) == (
            other.host,
            other.boot,
            other.pid_namespace,
        )


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

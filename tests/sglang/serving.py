"""`hsstore serve --engine sglang` as a user starts it, and everything that it leaves when killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from typing_extensions import override

from tests.extraction.processes import Extraction, Server, remove_spool, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-sglang/bin/python"
READY_SECONDS = 280.0
"""A start takes 15 to 40 s on an idle machine."""

_MARK = "HS_TEST_SERVER"
"""In the environment of all processes of a server, whatever group they have moved to."""
_SHARED_MEMORY = Path("/dev/shm")
runs: list[Extraction] = []
"""All that were started; `conftest` kills those that a failed test has left."""
running: list[SglangServer] = []
"""Servers whose logs a failing test shows."""
_SMALL = ("--max-total-tokens", "16384", "--max-running-requests", "64", "--sleep-on-idle")
"""Otherwise SGLang takes half of the memory for its KV cache, and one core while it has no work."""


class SglangServer(Server):
    """One `hsstore serve --engine sglang` with its own port, spool and witness directory.

    Parameters
    ----------
    sglang
        SGLang's own arguments.
    prefix
        A command that runs this command, such as `unshare`.
    user
        Who it runs as behind `prefix`, and whose its directory becomes.
    witness
        Where the witness writes, instead of into `directory`.
    """

    def __init__(
        self,
        model: Path,
        directory: Path,
        *arguments: str,
        sglang: Sequence[str] = (),
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        spool: Path | None = None,
        user: int | None = None,
        witness: Path | None = None,
    ) -> None:
        super().__init__(model, directory, *arguments)
        self.spool = spool or self.spool
        self.model = model
        self.witness = witness or directory / "witness"
        self.witness.mkdir(exist_ok=True)
        self.sglang_log = directory / "sglang.log"
        self._sglang = sglang
        self._prefix = prefix
        self._mark = uuid.uuid4().hex
        self.environment = {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "HS_WITNESS_DIR": str(self.witness),
            "TMPDIR": str(directory),  # for its sockets
            _MARK: self._mark,
            **(environment or {}),
        }
        if user is not None:  # `prefix` makes it run as that user
            self.environment["HOME"] = str(directory)
            directory.chmod(0o755)  # others reach the spool in it
            for path in (directory, self.witness):
                os.chown(path, user, user)

    def command(self) -> list[str]:
        """Return the command line; a second start takes the same port."""
        port = self.url.rpartition(":")[2] or "0"
        serve = [sys.executable, "-m", "hsstore", "serve", str(self.model), "--engine", "sglang"]
        options = ["--python", str(PYTHON), "--port", port, "--spool", str(self.spool)]
        options += ["--log", str(self.sglang_log), *self._arguments]
        return [*self._prefix, *serve, *options, "--", *_SMALL, *self._sglang]

    @override
    def start(self) -> SglangServer:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
                start_new_session=True,
            )
        return self

    @override
    def wait(self) -> SglangServer:
        wait_until(lambda: self._ready_url() is not None or not self.alive, READY_SECONDS)
        assert self.alive, self.log()
        self.url = self._ready_url() or ""
        return self

    def _ready_url(self) -> str | None:
        match = re.search(r"^ready (\S+) spool", self._log.read_text(), re.MULTILINE)
        return match and match[1]

    def log(self) -> str:
        """Return what the command said, and the end of what SGLang said."""
        sglang = self.sglang_log.read_text() if self.sglang_log.exists() else "no log of SGLang"
        return f"{self._log.read_text()}\n--- SGLang's log ---\n{sglang[-20_000:]}"

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this server that live."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and self._is_mine(process):
                    found.append(process)
        return found

    def _is_mine(self, process: psutil.Process) -> bool:
        return process.environ().get(_MARK) == self._mark

    @override
    def signal(self, number: signal.Signals) -> None:
        """Signal every process."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def stop(self) -> int:
        """End it as a user does; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(90)

    @override
    def kill(self) -> None:
        """SIGKILL all of it, and remove what it leaves in shared memory."""
        shared: set[Path] = set()
        while processes := self.processes():
            for process in processes:
                shared |= _shared_memory_of(process)
            self.signal(signal.SIGKILL)
            psutil.wait_procs(processes, 1)
        if self._process is not None:
            self._process.wait()
        for path in shared:
            path.unlink(missing_ok=True)

    @override
    def left_in_spool(self) -> list[str]:
        """Name what lies in the spool beside what the processes of the server keep there."""
        return [name for name in super().left_in_spool() if not name.startswith("heartbeat-")]

    def clear_witness(self) -> None:
        """Forget what the witness has seen so far."""
        for path in self.witness.iterdir():
            path.unlink(missing_ok=True)


@contextmanager
def serving(model: Path, *arguments: str, **options: Any) -> Iterator[SglangServer]:
    """Start a server in a directory of its own in shared memory; nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as path:
        server = SglangServer(model, Path(path), *arguments, **options)
        running.append(server)
        try:
            yield server.start().wait()
        finally:
            server.kill()
            running.remove(server)
            remove_spool(server)


def _shared_memory_of(process: psutil.Process) -> set[Path]:
    """Name the semaphores and queues in /dev/shm that a process uses: no SIGKILL removes them.

    By inode: a semaphore is mapped under a name that it had while it was made.
    """
    try:
        lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    mapped = {line.split()[4] for line in lines if f" {_SHARED_MEMORY}/" in line}
    with os.scandir(_SHARED_MEMORY) as entries:
        return {Path(entry) for entry in entries if str(entry.inode()) in mapped}

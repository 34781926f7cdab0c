"""SGLang's processes: a session of their own, which ends when we do, whatever ends us."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import BinaryIO

GRACE_SECONDS: Final = 20.0
"""SGLang ends within 8 s of SIGTERM; after a forward that failed it sleeps for a minute."""

_POLL_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 10.0
_SET_PARENT_DEATH_SIGNAL: Final = 1
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # only our own processes' files
_PREFIXES: Final = ("sgl_shm_", "sglang_loads_", "multi_tokenizer_args_", "sem.mp-")


class ServerProcess:
    """A started SGLang: the process we started, and all that it started in turn."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._guard = _guard(process.pid)
        self._shared: set[str] = set()

    @classmethod
    async def start(
        cls, argv: Sequence[str], environment: Mapping[str, str], output: BinaryIO
    ) -> ServerProcess:
        """Start it in a new session; SIGKILL of this process ends it too."""
        return cls(
            await asyncio.create_subprocess_exec(
                *argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        )

    @property
    def session(self) -> int:
        """Session id, which is also the process id of the first process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How the first process ended; None while it lives."""
        return self._process.returncode

    async def ended(self) -> int:
        """Wait for the first process to end; look meanwhile what will be left if it dies."""
        ending = asyncio.ensure_future(self._process.wait())
        try:
            while not ending.done():
                await asyncio.to_thread(self.members)
                await asyncio.wait({ending}, timeout=_LOOK_SECONDS)
            return ending.result()
        finally:
            ending.cancel()

    def members(self) -> set[int]:
        """Look for the live processes of the session, and remember for `stop` what is theirs."""
        members = {pid for pid, session in _sessions() if session == self.session}
        self._shared.update(name for pid in members for name in _shared_memory_of(pid))
        return members

    async def stop(self, hurry: asyncio.Event, *, grace_seconds: float = GRACE_SECONDS) -> None:
        """End all of them: SIGTERM, and SIGKILL after a grace or when `hurry` is set.

        The first process gets SIGTERM alone: it ends the others in order.
        """
        self.members()
        if self.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + grace_seconds
        while self.returncode is None and not hurry.is_set():
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        await self._kill()
        self._guard.kill()
        self._guard.communicate()
        self._remove_leftovers()

    async def _kill(self) -> None:
        """Kill until none is left: a process may start another while it dies."""
        deadline = asyncio.get_running_loop().time() + GRACE_SECONDS
        while members := self.members():
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_POLL_SECONDS)
            if asyncio.get_running_loop().time() > deadline:
                return  # in uninterruptible sleep: it ends when the kernel lets it
        await self._process.wait()

    def _remove_leftovers(self) -> None:
        """Remove shared memory that killed processes could not: what they were seen to have mapped.

        A process id in a name proves nothing: with --ipc=host other containers' are here too.
        """
        for name in tuple(self._shared):
            (_SHARED_MEMORY / name).unlink(missing_ok=True)


def cpu_seconds(pids: set[int]) -> float:
    """Add up what these processes have computed so far."""
    ticks = 0
    for pid in pids:
        fields = _stat(pid)
        ticks += int(fields[11]) + int(fields[12]) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def has_open(pids: set[int], path: Path) -> bool:
    """Tell whether one of these processes has a file open."""
    try:
        wanted = path.stat()
    except OSError:
        return False
    return any(_is_open(pid, wanted) for pid in pids)


def _is_open(pid: int, wanted: os.stat_result) -> bool:
    with suppress(OSError):  # it has ended, or is another user's
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(descriptor.stat(), wanted):
                    return True
    return False


def _sessions() -> Iterator[tuple[int, int]]:
    """Process id and session of every process that is not dead already."""
    for name in os.listdir("/proc"):  # noqa: PTH208  # a thousand Path objects for nothing
        if name.isdigit():
            fields = _stat(int(name))
            if fields and fields[0] not in {"Z", "X"}:
                yield int(name), int(fields[3])


def _shared_memory_of(pid: int) -> Iterator[str]:
    """Names of the files in /dev/shm that a process has mapped and SGLang or Python has made."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
    for line in maps.splitlines():
        path = line.rpartition(" ")[2]
        name = path.removeprefix(f"{_SHARED_MEMORY}/")
        if name != path and name.startswith(_PREFIXES):
            yield name


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on: the name before it may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _guard(group: int) -> subprocess.Popen[bytes]:
    """Start what kills the whole group when this process is gone without having stopped it.

    The kernel's signal reaches the first process only. Those that it has just started ask for the
    same of their parent as soon as they run, which is too late if it died while they started.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$1"', "hsstore-guard", str(group)],
        stdin=subprocess.PIPE,  # its end is the end of this process
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _die_with_parent() -> Callable[[], None]:
    """Return what the child runs before exec: the kernel kills it when our main thread ends."""
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def before_exec() -> None:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return before_exec

"""The servers of `bench_capture`: a real SGLang with the plugin, and ones without it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from extraction.engines.sglang.process import ServerProcess
from extraction.engines.sglang.serve import free_port
from extraction.server_link import ServerLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import numpy as np
    import numpy.typing as npt

SGLANG: Final = Path(__file__).resolve().parents[2] / ".venv-sglang/bin/python"
READY_SECONDS: Final = 900.0
STOP_SECONDS: Final = 90.0
SIZES: Final = ("--max-total-tokens", "32768", "--max-running-requests", "64", "--sleep-on-idle")
"""Otherwise SGLang takes half of the memory, and an idle server a core."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model and what is asked of it."""

    name: str
    model: Path
    chunk_rows: int
    prompts: list[npt.NDArray[np.int32]]
    layers: str | None = None
    bare: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further servers without the plugin, and the flags that each does without."""
    stock: bool = False
    """Whether SGLang is also asked to send states over HTTP."""
    against_memory: bool = False
    """Whether the hand-over is compared with itself without a model, and with a memcpy."""

    @property
    def tokens(self) -> int:
        """Of all prompts."""
        return sum(map(len, self.prompts))


def _serve_command(case: Case, directory: Path, port: int) -> list[str | Path]:
    layers = ("--layers", case.layers) if case.layers else ()
    return [
        *(sys.executable, "-m", "hsstore", "serve", case.model, "--engine", "sglang"),
        *("--python", SGLANG, "--dtype", "float32", *layers, "--port", str(port)),
        *("--spool", directory / "spool", "--log", directory / "sglang.log"),
        *("--", "--chunked-prefill-size", str(case.chunk_rows), *SIZES),
    ]


def environment_of_servers(threads: int | None) -> dict[str, str]:
    """Return what servers inherit; not the witness of the tests, which saves every chunk."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HS_")}
    return kept | {"HF_HUB_OFFLINE": "1"} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


@asynccontextmanager
async def with_plugin(
    case: Case, directory: Path, environment: Mapping[str, str]
) -> AsyncIterator[str]:
    """Run `hsstore serve` with files in a new directory; yields its URL."""
    _make(directory)
    log = directory / "serve.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *_serve_command(case, directory, 0),
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
    try:
        yield await _ready_url(process, log)
    finally:
        await _stop(process)


async def _ready_url(process: asyncio.subprocess.Process, log: Path) -> str:
    async with asyncio.timeout(READY_SECONDS):
        while process.returncode is None:
            if match := re.search(r"^ready (\S+) spool", _text(log), re.MULTILINE):
                return match[1]
            await asyncio.sleep(0.1)
    raise RuntimeError(f"hsstore serve ended with {process.returncode}:\n{_text(log)}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the process group; SGLang is in a session of its own, which `hsstore serve` ends."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()


@asynccontextmanager
async def without_plugin(
    case: Case, directory: Path, environment: Mapping[str, str], dropped: tuple[str, ...]
) -> AsyncIterator[str]:
    """Run the command that `hsstore serve` prints, without a spool; yields its URL."""
    _make(directory)
    port = free_port("127.0.0.1")
    command = _command_without_plugin(case, directory, port, environment, dropped)
    with (directory / "sglang.log").open("wb") as log:
        server = await ServerProcess.start(command, environment, log)
    try:
        url = f"http://127.0.0.1:{port}"
        await _wait_until_healthy(server, url, directory / "sglang.log")
        yield url
    finally:
        await server.stop(asyncio.Event())


def _command_without_plugin(
    case: Case,
    directory: Path,
    port: int,
    environment: Mapping[str, str],
    dropped: tuple[str, ...],
) -> list[str]:
    serve = _serve_command(case, directory, port)
    at = serve.index("--")
    command = [*serve[:at], "--print-command", *serve[at:]]
    printed = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = [line.strip() for line in printed.stdout.rstrip().split(" \\\n")]
    kept = [line for line in lines if not line.startswith(("HSSTORE_", *dropped))]
    return ["/bin/sh", "-c", "exec env " + " ".join(kept)]


async def _wait_until_healthy(server: ServerProcess, url: str, log: Path) -> None:
    async with asyncio.timeout(READY_SECONDS), ServerLink(url, 1) as link:
        while await link.trouble():
            if server.returncode is not None:
                raise RuntimeError(f"SGLang ended:\n{_text(log)[-5000:]}")
            server.members()  # so that `stop` knows what is theirs
            await asyncio.sleep(0.5)


def _make(directory: Path) -> None:
    directory.mkdir()


def _text(log: Path) -> str:
    return log.read_text(errors="replace")

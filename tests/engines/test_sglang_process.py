"""`hsstore serve --engine sglang` around a server that misbehaves; what is real is in tests/sglang."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from extraction.engines.sglang import readiness
from extraction.engines.sglang.process import ServerProcess
from extraction.engines.sglang.readiness import Startup
from extraction.spool import SpoolServer
from hsstore.errors import HsstoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = 60.0
"""Of patience: the machine may be busy."""


class Served:
    """A started `hsstore serve`."""

    def __init__(self, process: subprocess.Popen[str], log: Path, spool: Path) -> None:
        self.process = process
        self.log = log
        self.spool = spool

    def line(self) -> str:
        """Wait for the line on standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def server(self) -> psutil.Process:
        """Wait for the stand-in to run, and return it."""
        wait_until(lambda: self.log.exists() and "started with" in self.log.read_text())
        of_session = [
            p for p in psutil.Process(self.process.pid).children() if os.getsid(p.pid) == p.pid
        ]
        return next(p for p in of_session if "fake_sglang.py" in " ".join(p.cmdline()))

    def end(self) -> tuple[int, str]:
        """Wait for the end; returns exit code and what was said."""
        _, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, errors


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[str], Path]:
    """Make a program that behaves as a Python with SGLang does, or as it should not."""

    def make(behaviour: str) -> Path:
        script = Path(__file__).with_name("fake_sglang.py")
        path = tmp_path / f"python-{behaviour}"
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {script} {behaviour} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(
        json.dumps({"num_hidden_layers": 6, "dtype": "bfloat16"})
    )
    return directory


@pytest.fixture
def serving(
    interpreter: Callable[[str], Path], model: Path, spool_path: Path, tmp_path: Path
) -> Any:
    """`with serving(behaviour, *options) as served:` starts the command and leaves nothing."""

    @contextmanager
    def start(behaviour: str, *options: str) -> Iterator[Served]:
        log = tmp_path / "logs/sglang.log"
        command: list[str | Path] = [sys.executable, "-m", "hsstore", "serve", model]
        command += ["--engine", "sglang", "--python", interpreter(behaviour)]
        command += ["--spool", spool_path, "--layers", "1,2", "--log", log]
        if "--port" not in options:
            command += ["--port", "0"]
        process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            yield Served(process, log, spool_path)
        finally:
            for number in (signal.SIGTERM, signal.SIGTERM):
                with suppress(ProcessLookupError):
                    process.send_signal(number)
            process.communicate(timeout=SECONDS)
        for theirs in Path("/dev/shm").glob("sgl_shm_mq_*_theirs"):
            theirs.unlink()
        assert not list(Path("/dev/shm").glob("sgl_shm_mq_*_fake"))

    return start


def test_ready_is_said_when_the_plugin_has_announced_itself_and_health_answers(
    serving: Any,
) -> None:
    with serving("good", "--", "--tp-size=1", "--dtype", "half") as served:
        word, url, spool, path = served.line().split()
        server = served.server()
        served.process.send_signal(signal.SIGTERM)
        code, said = served.end()

    assert (word, spool, path) == ("ready", "spool", str(served.spool))
    assert f"--port', '{url.rpartition(':')[2]}'" in served.log.read_text()
    assert "'--tp-size=1', '--dtype', 'half'" in served.log.read_text()
    assert code == 0, said
    assert not is_running(server.pid)
    assert not served.spool.exists()


def test_shared_memory_of_another_container_with_the_same_process_id_is_left_alone(
    serving: Any,
) -> None:
    with serving("good") as served:
        served.line()
        pid = served.server().pid
        served.process.send_signal(signal.SIGTERM)
        served.end()

        assert Path(f"/dev/shm/sgl_shm_mq_{pid}_theirs").exists()
        assert not Path(f"/dev/shm/sgl_shm_mq_{pid}_fake").exists()


def test_keys_are_hidden_where_the_log_is_quoted_and_nobody_else_reads_it(serving: Any) -> None:
    with serving("dies") as served:
        served.end()
        served.log.chmod(0o644)
    with serving("dies", "--", "--api-key", "sk-1", "--admin-api-key=sk-2") as served:
        _, said = served.end()

    assert "'--api-key', '***', '--admin-api-key=***'" in said
    assert "sk-" not in said
    for path in (served.log, served.log.with_name("sglang.log.old")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_spool_is_clean_although_its_lock_outlives_the_server(serving: Any) -> None:
    with serving("lingers") as served:
        assert served.line().startswith("ready ")
        served.process.send_signal(signal.SIGTERM)
        code, said = served.end()

    assert code == 0, said
    assert "not cleaned" not in said
    assert not served.spool.exists()


def test_a_server_that_dies_at_start_is_quoted(serving: Any) -> None:
    with serving("dies") as served:
        code, said = served.end()

    assert code == 1
    assert "ended with 1 before it was ready" in said
    assert "| line 99" in said
    assert "| CUDA out of memory" in said
    assert "line 50" not in said
    assert str(served.log) in said
    assert not served.spool.exists()


def test_the_log_before_is_kept(serving: Any) -> None:
    with serving("dies") as served:
        served.end()
        served.log.write_text("the crash of yesterday")
    with serving("dies") as served:
        served.end()

    assert served.log.with_name("sglang.log.old").read_text() == "the crash of yesterday"


def test_a_server_that_dies_later_is_quoted(serving: Any) -> None:
    with serving("good") as served:
        url = served.line().split()[1]
        with pytest.raises(OSError, match="closed"):
            urllib.request.urlopen(f"{url}/die")
        code, said = served.end()

    assert code == 75
    assert "ended with 3 by itself" in said
    assert not served.spool.exists()


def test_stopping_during_the_start_stops_the_server(serving: Any) -> None:
    with serving("stubborn") as served:
        server = served.server()
        wait_until(lambda: len(server.children()) == 1)
        child = server.children()[0]
        served.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert is_running(server.pid)  # it ignores SIGTERM, and has its grace
        served.process.send_signal(signal.SIGINT)
        code, said = served.end()

    assert code == 75
    assert "before SGLang was ready" in said
    assert not is_running(server.pid)
    assert not is_running(child.pid)


def test_a_killed_serve_leaves_no_process(serving: Any) -> None:
    with serving("stubborn") as served:
        server = served.server()
        wait_until(lambda: len(server.children()) == 1)
        child = server.children()[0]
        served.process.kill()

        wait_until(lambda: not is_running(server.pid) and not is_running(child.pid))


def test_a_taken_port_is_refused_before_anything_starts(serving: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with serving("good", "--port", str(taken.getsockname()[1])) as served:
            code, said = served.end()

    assert code == 3
    assert "cannot serve on 127.0.0.1" in said
    assert not served.log.exists()


def test_a_spool_of_a_live_server_is_refused_before_anything_starts(
    serving: Any, spool_path: Path
) -> None:
    with SpoolServer(spool_path), serving("good") as served:
        code, said = served.end()

    assert code == 3
    assert "held by another process" in said
    assert not served.log.exists()


@pytest.mark.parametrize(
    ("behaviour", "code", "advice"),
    [
        ("no-plugin", 2, "pip install --no-deps hsstore"),
        ("no-sglang", 2, "pip install sglang=="),
        ("too-old", 3, "too old"),
    ],
)
def test_an_interpreter_that_cannot_capture_is_refused(
    serving: Any, behaviour: str, code: int, advice: str
) -> None:
    with serving(behaviour) as served:
        ended, said = served.end()

    assert ended == code
    assert advice in said
    assert f"python-{behaviour}" in said


async def test_a_server_whose_plugin_is_silent_is_given_up(
    interpreter: Callable[[str], Path], spool_path: Path, tmp_path: Path
) -> None:
    """Here with less patience than the command has."""
    server, url, log = await start_alone("mute", interpreter, spool_path, tmp_path)
    startup = Startup(server, url, spool_path, log, plugin_seconds=0.5)
    try:
        with pytest.raises(HsstoreError, match="no set_dflash_layers_to_capture"):
            await asyncio.wait_for(startup.wait(), SECONDS)
    finally:
        await server.stop(asyncio.Event())


async def test_a_server_whose_plugin_still_reads_the_weights_is_waited_for(
    interpreter: Callable[[str], Path],
    spool_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It holds the spool, so that no limit but that of a stall counts."""
    monkeypatch.setattr(readiness, "SHOW_SECONDS", 0.5)
    server, url, log = await start_alone("slow", interpreter, spool_path, tmp_path)
    try:
        startup = Startup(server, url, spool_path, log, plugin_seconds=1.5)
        info = await asyncio.wait_for(startup.wait(), SECONDS)
    finally:
        await server.stop(asyncio.Event())

    assert info.instance == "fake"
    assert "still reads the weights' headers" in capsys.readouterr().err


async def start_alone(
    behaviour: str, interpreter: Callable[[str], Path], spool: Path, room: Path
) -> tuple[ServerProcess, str, Path]:
    """Start the stand-in without the command around it; returns it, its URL and its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [str(interpreter(behaviour)), "-m", "sglang.launch_server", "--port", str(port)]
    environment = os.environ | {"HSSTORE_SPOOL": str(spool)}
    log = room / "log"
    with log.open("wb") as output:
        server = await ServerProcess.start(argv, environment, output)
    return server, f"http://127.0.0.1:{port}", log


async def test_a_server_that_does_nothing_at_all_is_given_up(
    interpreter: Callable[[str], Path], spool_path: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    argv = [str(interpreter("stubborn")), "-m", "sglang.launch_server"]
    with log.open("wb") as output:
        server = await ServerProcess.start(argv, os.environ, output)
    startup = Startup(server, "http://127.0.0.1:9", spool_path, log, stall_seconds=3)
    try:
        with pytest.raises(HsstoreError, match="neither written to its log nor computed for 3 s"):
            await asyncio.wait_for(startup.wait(), SECONDS)
    finally:
        await server.stop(asyncio.Event(), grace_seconds=0.5)

    assert server.members() == set()

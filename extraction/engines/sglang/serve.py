"""`hsstore serve --engine sglang`: start SGLang, wait until it is ready, stop it in the end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from extraction.engines.sglang.arguments import lookup, refuse_dangerous, warnings
from extraction.engines.sglang.checkpoint import read_checkpoint
from extraction.engines.sglang.command import Host, launch, on_cpu
from extraction.engines.sglang.installation import find_python, inspect
from extraction.engines.sglang.log import default_log, open_log
from extraction.engines.sglang.process import ServerProcess
from extraction.engines.sglang.readiness import Startup, died
from extraction.spool import SpoolError, SpoolServer, default_spool, headroom_bytes
from hsstore.errors import InterruptedRunError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from typing import Any

    from extraction.engines.sglang.command import Launch
    from extraction.engines.sglang.options import SglangOptions

_GPU_DEVICES: Final = ("/dev/nvidiactl", "/dev/kfd")
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_TIDY_ATTEMPTS: Final = 20
_TIDY_PAUSE_SECONDS: Final = 0.5
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def print_command(options: SglangOptions) -> None:
    """Print what `serve` would start, for people who start their servers themselves.

    Raises
    ------
    InputError
        The model, its layers or an argument cannot be used.
    """
    refuse_dangerous(options.arguments)
    checkpoint = read_checkpoint(options.model_dir)
    if options.python.exists():  # it may be in a container's image instead
        options = replace(options, python=find_python(options.python))
    port = options.port or free_port(options.host)
    host = this_host()
    for warning in warnings(options.arguments):
        _say(f"warning: {warning}")
    if on_cpu(options, host) and lookup(options.arguments, "--device") is None:
        _say("there is no GPU here, so this is for a CPU; for a GPU add: -- --device cuda")
    spool = (options.spool or default_spool(port)).absolute()
    command = launch(options, checkpoint, host, port=port, spool=spool).shell()
    sys.stdout.write(command + (f" \\\n  >{options.log} 2>&1" if options.log else "") + "\n")


def serve(options: SglangOptions) -> None:
    """Run SGLang until SIGTERM, SIGINT or SIGHUP.

    Prints `ready URL spool DIR` once it answers and its plugin captures.

    Raises
    ------
    InputError
        The model, the layers, an argument or the interpreter cannot be used.
    RefusedError
        The port is taken, the spool is somebody else's, or this SGLang is not supported.
    InterruptedRunError
        Stopped before it was ready, or SGLang ended by itself.
    HsstoreError
        SGLang did not get ready.
    """
    refuse_dangerous(options.arguments)
    checkpoint = read_checkpoint(options.model_dir)
    options = replace(options, python=find_python(options.python))
    port = options.port or free_port(options.host)
    spool = (options.spool or default_spool(port)).absolute()
    options = replace(options, log=(options.log or default_log(port)).absolute())
    command = launch(options, checkpoint, this_host(), port=port, spool=spool)
    _refuse_taken_port(options.host, port)
    tidy_spool(spool, options.spool_group)
    installation = inspect(options.python)
    for warning in _all_warnings(options):
        _say(f"warning: {warning}")
    _say(f"starting SGLang {installation.sglang}; its log: {options.log}")
    asyncio.run(_Serving(options, spool, server_url(options, port)).run(command))


class _Serving:
    """One run of one server."""

    def __init__(self, options: SglangOptions, spool: Path, url: str) -> None:
        self._options = options
        self._log = options.log or Path(os.devnull)
        self._spool = spool
        self._url = url

    async def run(self, command: Launch) -> None:
        with _stop_signals() as (stop, hurry), open_log(self._log) as output:
            environment = command.full_environment(os.environ)
            server = await ServerProcess.start(command.argv, environment, output)
            try:
                await self._serve_until(stop, server)
            finally:
                _say("stopping SGLang")
                await server.stop(hurry)
                await self._tidy()

    async def _serve_until(self, stop: asyncio.Event, server: ServerProcess) -> None:
        startup = Startup(server, self._url, self._spool, self._log)
        if not await _finishes(startup.wait(), before=stop):
            raise InterruptedRunError("stopped before SGLang was ready")
        free_bytes = headroom_bytes(self._spool)
        _say(f"ready; dumps may take {free_bytes / 1e9:.1f} GB of shared memory")
        sys.stdout.write(f"ready {self._url} spool {self._spool}\n")
        sys.stdout.flush()
        if await _finishes(server.ended(), before=stop):
            raise InterruptedRunError(died(server.returncode or 0, self._log, when="by itself"))

    async def _tidy(self) -> None:
        """Leave the spool clean. A killed process holds its lock until its last thread is gone."""
        for left in reversed(range(_TIDY_ATTEMPTS)):
            try:
                tidy_spool(self._spool, self._options.spool_group)
                break
            except RefusedError as error:
                if not left:
                    _say(f"warning: the spool is not cleaned: {error}")
            await asyncio.sleep(_TIDY_PAUSE_SECONDS)


async def _finishes(work: Coroutine[Any, Any, object], *, before: asyncio.Event) -> bool:
    """Run `work`, and give it up when the event comes first; says whether it finished."""
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(before.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task.done()
    finally:
        for one in (task, waiting):
            one.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)


@contextmanager
def _stop_signals() -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Set the first event on the first signal to stop, and the second one on the next."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_or_hurry() -> None:
        (hurry if stop.is_set() else stop).set()

    numbers = list(_STOP_SIGNALS)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup wants it to stay so
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop_or_hurry)
    try:
        yield stop, hurry
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def free_port(host: str) -> int:
    """Let the system choose a port that nobody listens on.

    Raises
    ------
    RefusedError
        There is no such address here.
    """
    return _try_to_bind(host, 0)


def server_url(options: SglangOptions, port: int) -> str:
    """Name the server for clients on this machine: no other one sees the spool."""
    scheme = "https" if lookup(options.arguments, "--ssl-certfile") else "http"
    host = _ANY_ADDRESS.get(options.host, options.host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def tidy_spool(spool: Path, group: int | None) -> None:
    """Take the server's side of the spool for a moment: what a dead server left is removed.

    Raises
    ------
    RefusedError
        A live server holds it, or it belongs to somebody else.
    """
    try:
        with SpoolServer(spool, group=group):
            pass
    except SpoolError as error:
        raise RefusedError(str(error)) from error


def this_host() -> Host:
    """Look at this machine."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in {"", "-1"}
    return Host(
        environment=os.environ,
        accelerator=not hidden and any(Path(device).exists() for device in _GPU_DEVICES),
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )


def _refuse_taken_port(host: str, port: int) -> None:
    """Find out now: SGLang does so after it has loaded the model."""
    _try_to_bind(host, port)


def _try_to_bind(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise RefusedError(f"cannot serve on {host}:{port}: {error}") from error
        return int(listener.getsockname()[1])


def _all_warnings(options: SglangOptions) -> list[str]:
    found = warnings(options.arguments)
    if not on_cpu(options, this_host()):
        found.append(
            "capture on a GPU is experimental: it has not been run on one by its authors. Run "
            "tools/check_capture_gpu.py there before you trust a store"
        )
    return found


def _say(message: str) -> None:
    with suppress(OSError):  # whoever listened may be gone; the server has to be stopped anyway
        sys.stderr.write(f"hsstore: {message}\n")
        sys.stderr.flush()

"""`hsstore serve --engine embedded`: a model, a spool and an HTTP server in one process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from aiohttp import web

from extraction.engines.generation import make_generator
from extraction.engines.http_server import make_app
from extraction.engines.worker import Request, Worker
from extraction.spool import ServerInfo, SpoolError, SpoolServer, default_spool
from hsstore.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from extraction.engines.engine import Engine, EngineDescription


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `hsstore serve` was asked for."""

    model_dir: Path
    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose."""
    spool: Path | None = None
    """`default_spool(port)` where None."""
    spool_group: int | None = None
    """Group id to share the spool with; None keeps it private."""
    layers: tuple[int, ...] | None = None
    """0-based decoder layers; EAGLE-3's where None."""
    dtype: str | None = None
    """Of the captured states; the checkpoint's own where None."""
    compute_dtype: str | None = None
    """What the model computes in; the same as `dtype` where None."""
    piece_tokens: int = 256
    """Rows handed over at a time, as chunked prefill would."""
    threads: int | None = None
    """Forwards at once, each in one thread; as many as there are cores where None."""
    log_path: str = ""
    """Where this process's log goes, for the client to tell people."""


def serve(options: ServeOptions) -> None:
    """Load the model and serve until SIGTERM or SIGINT.

    Prints `ready http://HOST:PORT spool DIR` once it answers.

    Raises
    ------
    InputError
        The model or the layers cannot be used.
    RefusedError
        The port is taken, or the spool belongs to somebody else.
    """

    def load() -> Engine:
        # Imported late: torch takes seconds, and a refused spool should be told at once.
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

        from extraction.engines.transformers_model import TransformersEngine  # noqa: PLC0415

        disable_progress_bar()  # type: ignore[no-untyped-call]  # our output goes to a log
        return TransformersEngine(
            options.model_dir,
            layers=options.layers,
            dtype=options.dtype,
            compute_dtype=options.compute_dtype,
        )

    asyncio.run(serve_engine(load, options))


async def serve_engine(load: Callable[[], Engine], options: ServeOptions) -> None:
    """Serve any engine until SIGTERM or SIGINT; see `serve`."""
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    with _bind(options) as listener:
        port = listener.getsockname()[1]
        try:
            spool = SpoolServer(options.spool or default_spool(port), group=options.spool_group)
        except SpoolError as error:
            raise RefusedError(str(error)) from error
        with spool:
            engine = await asyncio.to_thread(load)
            threads = options.threads or len(os.sched_getaffinity(0))
            worker = Worker(engine, spool, piece_tokens=options.piece_tokens, threads=threads)
            generator = make_generator(engine, worker.in_flight, threads=threads)
            app = make_app(worker, engine.description, generator)
            try:
                await _warm_up(worker)
                await _answer_until(stop, listener, app, spool, engine.description, options)
            finally:
                if generator is not None:
                    await asyncio.to_thread(generator.close)
                await asyncio.to_thread(worker.close)


async def _answer_until(
    stop: asyncio.Event,
    listener: socket.socket,
    app: web.Application,
    spool: SpoolServer,
    about: EngineDescription,
    options: ServeOptions,
) -> None:
    # A handler whose client has gone is cancelled, and aborts its request.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        host = f"[{options.host}]" if ":" in options.host else options.host
        url = f"http://{host}:{listener.getsockname()[1]}"
        spool.announce(_server_info(about, spool, url, options))
        sys.stdout.write(f"ready {url} spool {spool.directory.path}\n")
        sys.stdout.flush()
        await stop.wait()
    finally:
        await runner.cleanup()


async def _warm_up(worker: Worker) -> None:
    """Run one short sequence: the first forward is the slowest, and may fail."""
    request = Request("warm-up", np.zeros(8, np.int32), predict=True)
    await asyncio.wrap_future(worker.submit([request])[0])


def _bind(options: ServeOptions) -> socket.socket:
    """Take the port before the model is loaded; it begins to listen afterwards."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        raise RefusedError(f"cannot serve on {options.host}:{options.port}: {error}") from error
    return listener


def _server_info(
    about: EngineDescription, spool: SpoolServer, url: str, options: ServeOptions
) -> ServerInfo:
    return ServerInfo(
        instance=spool.instance,
        capture_hash=about.capture_hash,
        model=about.model,
        num_layers=about.num_layers,
        hidden=about.hidden,
        layers=about.layers,
        final=about.final,
        dtype=about.dtype,
        norm=about.norm,
        engine=about.name,
        engine_version=about.version,
        plugin_version=version("hsstore"),
        pid=os.getpid(),
        host=socket.gethostname(),
        url=url,
        log_path=options.log_path,
        flags=about.flags | {"piece_tokens": options.piece_tokens},
        isolated=True,
    )

"""The hooks: what runs inside SGLang's processes. No exception leaves this module.

An exception in a hook would kill the scheduler, and with it the server.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

import torch

from extraction.spool import AttachedServer, SpoolError, SpoolServer
from extraction.spool.directory import SERVER_LOCK
from extraction.spool.lock import is_held, read_holder
from extraction.spool.memory import available_bytes
from hsstore_sglang import sglang_facts
from hsstore_sglang.describe import describe, server_info
from hsstore_sglang.forward import ForwardHook
from hsstore_sglang.inventory import ENGINE, FORWARD, LOADED, SYMBOLS, WEIGHT_UPDATES, find_missing
from hsstore_sglang.model import UnsupportedError
from hsstore_sglang.recorder import Recorder
from hsstore_sglang.settings import (
    SettingsError,
    ensure_instance,
    read_settings,
    renew_instance,
    switch_off,
)
from hsstore_sglang.staging import MIN_STAGING_BYTES, Shape, Staging, default_staging_bytes
from hsstore_sglang.versions import installed_sglang, problem_of

if TYPE_CHECKING:
    from pathlib import Path

    from extraction.spool import SpoolWriter
    from hsstore_sglang.describe import Capture
    from hsstore_sglang.settings import Settings
    from hsstore_sglang.sglang_types import ForwardBatch, ModelRunner, RunnerOutput

logger = logging.getLogger(__name__)

_START_SECONDS: Final = 600.0
"""How long processes of one server wait for each other: the slowest loads its weights meanwhile."""
_MEMORY_SHARE: Final = 4
"""Of the available memory, staging buffers take at most one part in so many."""
_DYING_SECONDS: Final = 10.0
"""How long a server that was told to stop may still hold the spool."""


def register_hooks() -> None:
    """Register the hooks with SGLang, or say why nothing will be captured."""
    first = ensure_instance()
    problem = problem_of(installed_sglang())
    if problem is not None:
        _say_not_capturing(problem)
        return
    try:
        settings = read_settings()
    except SettingsError as error:
        _say_not_capturing(error)
        return
    try:
        problem = _held_by_another(settings.spool / SERVER_LOCK) if first else None
    except OSError as error:
        problem = f"the spool cannot be used: {error}"
    if problem is not None:  # said before a large model is loaded for nothing
        _say_not_capturing(problem)
        switch_off()  # or the processes that this one starts might capture after all
        return
    _register(Plugin(settings), first=first)


def _held_by_another(lock: Path) -> str | None:
    """Say which server holds the spool, unless it is about to end."""
    deadline = time.monotonic() + _DYING_SECONDS
    while is_held(lock):
        if time.monotonic() > deadline:
            return f"another server holds {lock}: {read_holder(lock)}"
        time.sleep(0.1)
    return None


def _register(plugin: Plugin, *, first: bool) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    HookRegistry.register(LOADED, plugin.after_loading, HookType.AFTER)
    HookRegistry.register(FORWARD, plugin.after_forward, HookType.AFTER)
    for target in WEIGHT_UPDATES:
        HookRegistry.register(target, plugin.after_update, HookType.AFTER)
    if first:  # an engine that is under construction now is not hooked any more: the next ones are
        HookRegistry.register(ENGINE, _before_engine, HookType.BEFORE)


def _before_engine(*_: object, **__: object) -> None:
    renew_instance()


class Plugin:
    """The state of one process of the server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loaded = False
        self._spool: SpoolWriter | None = None
        self._forward: ForwardHook | None = None
        self._stopped = ""
        """Why nothing is captured any more, also where nothing was announced yet."""
        self._announcing = threading.Lock()
        """Held while the announcement is made, or taken back."""

    def after_loading(self, _result: object, runner: ModelRunner, *_: object, **__: object) -> None:
        """Describe the model and open the spool, in a process that is to write."""
        try:
            if not self._loaded and not runner.is_draft_worker:
                self._loaded = True
                self._prepare(runner)
        except Exception as error:  # noqa: BLE001 - the boundary to SGLang
            self._give_up(error)

    def after_forward(
        self,
        output: RunnerOutput,
        runner: ModelRunner,
        *arguments: ForwardBatch,
        **named: ForwardBatch,
    ) -> None:
        """Queue a copy of the rows that are asked for."""
        try:
            if self._forward is not None and not runner.is_draft_worker:
                batch = arguments[0] if arguments else named["forward_batch"]
                self._forward.after(output, batch)
        except Exception as error:  # noqa: BLE001 - it would kill the scheduler
            self._stop(f"this SGLang calls forward in a way that hsstore does not know: {error!r}")
            self._forward = None  # or it would be said again with every forward

    def after_update(self, *_: object, **__: object) -> None:
        """Stop capturing: the weights are no longer those that were announced."""
        if self._loaded and not self._stopped:
            self._stop("the weights were replaced while the server ran: restart it")

    def _stop(self, reason: str) -> None:
        """Capture nothing from now on, and let no client come."""
        try:
            with self._announcing:
                self._stopped = reason
                if self._forward is None:
                    return
                self._forward.distrust(reason)
                _say_not_capturing(reason)
                if isinstance(self._spool, SpoolServer):
                    self._spool.retract()
        except Exception:  # the boundary to SGLang
            logger.exception("hsstore: the announcement could not be taken back")

    def _prepare(self, runner: ModelRunner) -> None:
        if missing := find_missing(SYMBOLS):
            raise UnsupportedError("this SGLang lacks what the plugin needs: " + "; ".join(missing))
        ranks = sglang_facts.ranks()
        if not ranks.writes:
            return
        capture = describe(runner, sglang_facts.arguments(runner))
        shape = Shape(capture.slots, capture.hidden, capture.dtype)
        device = torch.device(runner.device)
        staging = Staging(self._staging_bytes(capture, shape, device), shape, device)
        for warning in capture.flags["warnings"] if ranks.writer == 0 else ():
            logger.warning("hsstore: warning: %s", warning)
        # In a thread: processes wait for each other here, and this one may be needed to go on.
        threading.Thread(
            target=self._start,
            args=(capture, staging, ranks.writer),
            name="hsstore-start",
            daemon=True,
        ).start()

    def _staging_bytes(self, capture: Capture, shape: Shape, device: torch.device) -> int:
        if self._settings.staging_bytes is not None:
            return self._settings.staging_bytes
        wanted_bytes = default_staging_bytes(shape, capture.chunk_rows, device)
        share_bytes = available_bytes() // (_MEMORY_SHARE * capture.writers)
        size_bytes = min(wanted_bytes, max(share_bytes, MIN_STAGING_BYTES))
        if size_bytes < wanted_bytes:
            capture.flags["warnings"].append(
                f"the staging buffer has {size_bytes >> 20} MiB, a share of the memory that is "
                f"available, and forwards of {capture.chunk_rows} rows ask for "
                f"{wanted_bytes >> 20} MiB: set HSSTORE_STAGING_MB, or lower --chunked-prefill-size"
            )
        return size_bytes

    def _start(self, capture: Capture, staging: Staging, writer: int) -> None:
        try:
            if writer == 0:
                logger.info(
                    "hsstore: reading %s's weight headers before announcing %s",
                    capture.model,
                    self._settings.spool,
                )
                self._own_spool(capture, staging)
            else:
                self._attach(staging, writer)
        except Exception as error:  # noqa: BLE001 - of a thread: nobody else would say it
            self._give_up(error)
            return
        logger.info(
            "hsstore: capturing layers %s and the final state into %s (writer %d of %d)",
            list(capture.layers),
            self._settings.spool,
            writer + 1,
            capture.writers,
        )

    def _own_spool(self, capture: Capture, staging: Staging) -> None:
        settings = self._settings
        spool = SpoolServer(settings.spool, group=settings.group, instance=settings.instance)
        self._spool = spool
        info = server_info(capture, settings)
        spool.wait_for_attached(capture.writers - 1, _START_SECONDS)
        self._forward = ForwardHook(spool, Recorder(spool, staging), staging.shape)
        with self._announcing:
            self._check_not_stopped()
            spool.announce(info)  # last: whoever reads it may send requests

    def _attach(self, staging: Staging, writer: int) -> None:
        settings = self._settings
        spool = AttachedServer(
            settings.spool, settings.instance, writer, timeout_seconds=_START_SECONDS
        )
        self._spool = spool
        self._forward = ForwardHook(spool, Recorder(spool, staging), staging.shape)
        with self._announcing:
            self._check_not_stopped()
            spool.join()  # last: from now on the owner may announce

    def _check_not_stopped(self) -> None:
        """Refuse to announce what is no longer so."""
        if self._stopped:
            raise UnsupportedError(self._stopped)

    def _give_up(self, error: Exception) -> None:
        expected = isinstance(error, (SpoolError, UnsupportedError, OSError))
        _say_not_capturing(error, exc_info=not expected)
        self._forward = None
        if self._spool is not None:
            self._spool.close()
            self._spool = None


def _say_not_capturing(reason: object, *, exc_info: bool = False) -> None:
    logger.error("hsstore: not capturing: %s", reason, exc_info=exc_info)

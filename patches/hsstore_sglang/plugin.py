"""The hooks: what runs inside SGLang's processes. No exception leaves this module.

An exception in a hook would kill the scheduler, and with it the server.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

import torch

from extraction.spool import AttachedServer, SpoolError, SpoolServer
from extraction.spool.directory import SERVER_LOCK
from extraction.spool.lock import is_held, read_holder
from hsstore_sglang import sglang_facts
from hsstore_sglang.describe import describe, server_info
from hsstore_sglang.forward import ForwardHook
from hsstore_sglang.inventory import FORWARD, LOADED, WEIGHT_UPDATES, find_missing
from hsstore_sglang.model import UnsupportedError
from hsstore_sglang.recorder import Recorder
from hsstore_sglang.settings import SettingsError, ensure_instance, read_settings
from hsstore_sglang.staging import Shape, Staging
from hsstore_sglang.versions import installed_sglang, problem_of

if TYPE_CHECKING:
    from extraction.spool import SpoolWriter
    from hsstore_sglang.describe import Capture
    from hsstore_sglang.settings import Settings
    from hsstore_sglang.sglang_types import ForwardBatch, ModelRunner, RunnerOutput

logger = logging.getLogger(__name__)

_START_SECONDS: Final = 600.0
"""How long processes of one server wait for each other: the slowest loads its weights meanwhile."""
_MIN_STAGING_BYTES: Final = 64 << 20
_FORWARDS_STAGED: Final = 2
"""Of the largest size, by default: one is written while the next one arrives."""


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
    lock = settings.spool / SERVER_LOCK
    if first and is_held(lock):  # said before a large model is loaded for nothing
        _say_not_capturing(f"another server holds {lock}: {read_holder(lock)}")
        return
    _register(Plugin(settings))


def _register(plugin: Plugin) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    HookRegistry.register(LOADED, plugin.after_loading, HookType.AFTER)
    HookRegistry.register(FORWARD, plugin.after_forward, HookType.AFTER)
    for target in WEIGHT_UPDATES:
        HookRegistry.register(target, plugin.after_update, HookType.AFTER)


class Plugin:
    """The state of one process of the server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loaded = False
        self._spool: SpoolWriter | None = None
        self._forward: ForwardHook | None = None

    def after_loading(self, _result: object, runner: ModelRunner, *_: object, **__: object) -> None:
        """Describe the model and open the spool, in a process that is to write."""
        if self._loaded or runner.is_draft_worker:
            return
        self._loaded = True
        try:
            self._prepare(runner)
        except Exception as error:  # noqa: BLE001 - the boundary to SGLang
            self._give_up(error)

    def after_forward(
        self,
        output: RunnerOutput,
        runner: ModelRunner,
        forward_batch: ForwardBatch,
        *_: object,
        **__: object,
    ) -> None:
        """Queue a copy of the rows that are asked for."""
        if self._forward is not None and not runner.is_draft_worker:
            self._forward.after(output, forward_batch)

    def after_update(self, *_: object, **__: object) -> None:
        """Stop capturing: the weights are no longer those that were announced."""
        if self._forward is None:
            return
        reason = "the weights were replaced while the server ran: restart it"
        self._forward.distrust(reason)
        _say_not_capturing(reason)
        if isinstance(self._spool, SpoolServer):
            self._spool.retract()

    def _prepare(self, runner: ModelRunner) -> None:
        if missing := find_missing():
            raise UnsupportedError("this SGLang lacks what the plugin needs: " + "; ".join(missing))
        ranks = sglang_facts.ranks()
        if not ranks.writes:
            return
        capture = describe(runner, sglang_facts.arguments(runner))
        for warning in capture.flags["warnings"] if ranks.writer == 0 else ():
            logger.warning("hsstore: warning: %s", warning)
        shape = Shape(capture.slots, capture.hidden, capture.dtype)
        staging = Staging(self._staging_bytes(capture, shape), shape, torch.device(runner.device))
        # In a thread: processes wait for each other here, and this one may be needed to go on.
        threading.Thread(
            target=self._start,
            args=(capture, staging, ranks.writer),
            name="hsstore-start",
            daemon=True,
        ).start()

    def _staging_bytes(self, capture: Capture, shape: Shape) -> int:
        needed_bytes = _FORWARDS_STAGED * shape.size_bytes(capture.chunk_rows)
        return self._settings.staging_bytes or max(needed_bytes, _MIN_STAGING_BYTES)

    def _start(self, capture: Capture, staging: Staging, writer: int) -> None:
        try:
            if writer == 0:
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
        spool.announce(info)  # last: whoever reads it may send requests

    def _attach(self, staging: Staging, writer: int) -> None:
        settings = self._settings
        spool = AttachedServer(
            settings.spool, settings.instance, writer, timeout_seconds=_START_SECONDS
        )
        self._spool = spool
        self._forward = ForwardHook(spool, Recorder(spool, staging), staging.shape)
        spool.join()  # last: from now on the owner may announce

    def _give_up(self, error: Exception) -> None:
        expected = isinstance(error, (SpoolError, UnsupportedError, OSError))
        _say_not_capturing(error, exc_info=not expected)
        self._forward = None
        if self._spool is not None:
            self._spool.close()
            self._spool = None


def _say_not_capturing(reason: object, *, exc_info: bool = False) -> None:
    logger.error("hsstore: not capturing: %s", reason, exc_info=exc_info)

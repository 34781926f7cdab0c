"""The hooks themselves: what SGLang calls, whatever it calls them with."""

from __future__ import annotations

import logging
import os
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import hsstore_sglang.plugin
from extraction.spool import SpoolServer
from hsstore_sglang.describe import Capture
from hsstore_sglang.inventory import ENGINE
from hsstore_sglang.plugin import Plugin, register_hooks
from hsstore_sglang.settings import Settings
from hsstore_sglang.staging import Shape, Staging
from tests.plugin.conftest import STAGING_BYTES, assert_dump_is, make_forward, make_sample
from tests.spool.given import HIDDEN, LAYERS, SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from extraction.spool import SpoolClient
    from tests.plugin.conftest import Engine

TARGET: Any = SimpleNamespace(is_draft_worker=False)
INSTANCE = "12345678-1234-1234-1234-123456789abc"


def _settings(spool: Path) -> Settings:
    return Settings(spool, None, "", None, INSTANCE)


@pytest.fixture
def plugin(server: SpoolServer, engine: Engine) -> Plugin:
    """Of a server that has announced itself."""
    plugin = Plugin(_settings(server.directory.path))
    plugin._loaded = True
    plugin._spool, plugin._forward = server, engine.hook
    return plugin


def _is_announced(server: SpoolServer) -> bool:
    return (server.directory.path / "server.json").exists()


@pytest.mark.parametrize("named", [False, True])
def test_the_batch_is_found_however_it_is_handed_over(
    client: SpoolClient, engine: Engine, plugin: Plugin, *, named: bool
) -> None:
    request = make_sample(0, 20)
    output, batch = make_forward([(request, 0, 20)])

    if named:
        plugin.after_forward(output, TARGET, forward_batch=batch)
    else:
        plugin.after_forward(output, TARGET, batch, "something else")  # type: ignore[arg-type]
    engine.drain()

    assert_dump_is(client, request)


@pytest.mark.parametrize("call", ["no runner of that kind", "no batch"])
def test_a_forward_of_another_kind_stops_the_capture_and_not_the_server(
    server: SpoolServer, plugin: Plugin, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    output, batch = make_forward([(make_sample(0, 20), 0, 20)])
    changed: Any = SimpleNamespace()
    for _ in range(3):
        if call == "no batch":
            plugin.after_forward(output, TARGET)
        else:
            plugin.after_forward(output, changed, batch)

    assert not _is_announced(server)
    assert caplog.text.count("hsstore: not capturing: this SGLang calls forward") == 1


def test_a_runner_of_another_kind_is_reported_and_kills_nothing(
    spool_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changed: Any = SimpleNamespace()

    Plugin(_settings(spool_path)).after_loading(None, changed)

    assert "hsstore: not capturing" in caplog.text
    assert "is_draft_worker" in caplog.text


def test_replaced_weights_end_the_capture_and_the_announcement(
    server: SpoolServer, client: SpoolClient, engine: Engine, plugin: Plugin
) -> None:
    request = make_sample(0, 20)

    plugin.after_update()
    output, batch = make_forward([(request, 0, 20)])
    plugin.after_forward(output, TARGET, batch)
    engine.drain()

    assert not _is_announced(server)
    assert "weights were replaced" in client.take_error(request.rid).detail


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    return Capture(
        model="a model",
        model_dir=tmp_path,
        num_layers=4,
        hidden=HIDDEN,
        layers=LAYERS,
        dtype=torch.bfloat16,
        norm=None,
        url="http://127.0.0.1:1",
        flags={"warnings": []},
        numeric_changes={},
        chunk_rows=100,
        writers=1,
    )


@pytest.mark.parametrize("replaced", [False, True])
def test_weights_that_are_replaced_while_they_are_hashed_are_not_announced(
    spool_path: Path, capture: Capture, caplog: pytest.LogCaptureFixture, *, replaced: bool
) -> None:
    caplog.set_level(logging.INFO)
    plugin = Plugin(_settings(spool_path))
    plugin._loaded = True
    staging = Staging(STAGING_BYTES, Shape(SLOTS, HIDDEN, torch.bfloat16), torch.device("cpu"))
    if replaced:
        plugin.after_update()

    plugin._start(capture, staging, 0)

    reading = "hsstore: reading a model's weight headers before announcing"
    assert f"{reading} {spool_path}" in caplog.text
    assert (spool_path / "server.json").exists() != replaced
    assert ("hsstore: not capturing: the weights were replaced" in caplog.text) == replaced
    if plugin._spool is not None:
        plugin._spool.close()


@pytest.mark.parametrize("available_bytes", [1 << 30, 8 << 30])
def test_a_buffer_takes_no_more_than_a_part_of_the_memory_and_says_so(
    spool_path: Path, capture: Capture, monkeypatch: pytest.MonkeyPatch, available_bytes: int
) -> None:
    monkeypatch.setattr(hsstore_sglang.plugin, "available_bytes", lambda: available_bytes)
    shape = Shape(4, 7168, torch.bfloat16)
    large = Capture(
        **{name: getattr(capture, name) for name in Capture.__slots__} | {"chunk_rows": 16384}
    )

    size_bytes = Plugin(_settings(spool_path))._staging_bytes(large, shape, torch.device("cuda"))

    assert size_bytes == available_bytes // 4
    assert any("HSSTORE_STAGING_MB" in warning for warning in large.flags["warnings"])


class _Registry:
    """SGLang's `HookRegistry`."""

    def __init__(self) -> None:
        self.hooks: dict[str, Any] = {}

    def register(self, target: str, hook: Any, _: object) -> None:
        self.hooks[target] = hook


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Registry]:
    """Stand in for an installed SGLang."""
    registry = _Registry()
    module: Any = SimpleNamespace(
        HookRegistry=registry, HookType=SimpleNamespace(AFTER="after", BEFORE="before")
    )
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", module)
    monkeypatch.setattr(hsstore_sglang.plugin, "installed_sglang", lambda: "0.5.23")
    monkeypatch.delenv("HSSTORE_INSTANCE", raising=False)
    yield registry
    os.environ.pop("HSSTORE_INSTANCE", None)


def test_a_server_that_is_about_to_end_is_waited_for(
    spool_path: Path, registry: _Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSSTORE_SPOOL", str(spool_path))
    dying = SpoolServer(spool_path)
    threading.Timer(0.3, dying.close).start()

    register_hooks()

    assert registry.hooks


def test_beside_another_server_no_process_of_this_one_captures(
    spool_path: Path,
    registry: _Registry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HSSTORE_SPOOL", str(spool_path))
    monkeypatch.setattr(hsstore_sglang.plugin, "_DYING_SECONDS", 0.2)
    with SpoolServer(spool_path) as other:
        register_hooks()

    assert f"hsstore: not capturing: another server holds {spool_path}" in caplog.text
    assert other.instance in caplog.text
    assert not registry.hooks
    assert "HSSTORE_SPOOL" not in os.environ, "the processes that inherit it would capture later"


def test_a_lock_that_cannot_be_read_is_said_with_our_mark(
    tmp_path: Path,
    registry: _Registry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HSSTORE_SPOOL", str(tmp_path / "file"))

    register_hooks()

    assert "hsstore: not capturing: the spool cannot be used" in caplog.text
    assert not registry.hooks


def test_each_engine_of_one_python_process_is_a_start_of_its_own(
    spool_path: Path, registry: _Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSSTORE_SPOOL", str(spool_path))
    register_hooks()
    first = os.environ["HSSTORE_INSTANCE"]

    answer = registry.hooks[ENGINE]("an engine", model_path="a model")

    assert answer is None, "SGLang would take it for other arguments"
    assert os.environ["HSSTORE_INSTANCE"] != first


def test_a_process_that_computes_keeps_the_name_of_its_start(
    spool_path: Path, registry: _Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSSTORE_SPOOL", str(spool_path))
    monkeypatch.setenv("HSSTORE_INSTANCE", INSTANCE)

    register_hooks()

    assert ENGINE not in registry.hooks
    assert os.environ["HSSTORE_INSTANCE"] == INSTANCE

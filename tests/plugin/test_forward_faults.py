"""What goes wrong in a capture ends its requests with the reason, and holds up no forward."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from extraction.spool import ClientInfo, ErrorReason, RequestId, SpoolClient, SpoolServer
from tests.extraction.mounts import small_tmpfs
from tests.plugin.conftest import (
    STAGING_BYTES,
    Engine,
    assert_dump_is,
    make_forward,
    make_sample,
)
from tests.spool.given import RUN

if TYPE_CHECKING:
    import torch

    from extraction.spool import ServerInfo


def test_a_request_longer_than_it_said_is_a_mismatch(client: SpoolClient, engine: Engine) -> None:
    request = make_sample(0, 20)
    output, batch = make_forward([(request, 0, 20)])
    lied = RequestId(RUN, 0, 0, 12)
    batch.rids = [str(lied)]

    engine.hook.after(output, batch)
    engine.drain()

    assert client.take_error(lied).reason == ErrorReason.MISMATCH


def test_a_full_spool_ends_its_captures_and_the_next_ones_succeed(info: ServerInfo) -> None:
    with small_tmpfs(1 << 20) as path, SpoolServer(path / "spool") as server:
        server.announce(info)
        engine = Engine(server)
        with SpoolClient(path / "spool", ClientInfo(RUN, "store")) as client:
            large = make_sample(0, 40)
            claimed = RequestId(RUN, 0, 0, 100_000)
            output, batch = make_forward([(large, 0, 40)])
            batch.rids = [str(claimed)]
            engine.hook.after(output, batch)
            engine.drain()
            assert client.take_error(claimed).reason == ErrorReason.FULL

            small = make_sample(1, 40)
            engine.forward((small, 0, 40))
            engine.drain()
            assert_dump_is(client, small)
        engine.recorder.close()


def test_a_spool_directory_that_vanished_kills_nothing(
    server: SpoolServer, client: SpoolClient, engine: Engine
) -> None:
    request = make_sample(0, 20)
    engine.forward((request, 0, 10))
    engine.drain()
    shutil.rmtree(server.directory.path)

    engine.forward((request, 10, 20), (make_sample(1, 5), 0, 5))
    engine.drain()

    assert engine.staging.ring.used_bytes() == 0


def test_a_dump_that_its_client_threw_away_is_let_go_of_without_further_rows(
    server: SpoolServer, client: SpoolClient, engine: Engine
) -> None:
    request = make_sample(0, 20)
    engine.forward((request, 0, 10))
    engine.drain()
    client.discard(request.rid)

    deadline = time.monotonic() + 60
    while server._open and time.monotonic() < deadline:
        time.sleep(0.05)  # an idle writer looks every second

    assert not server._open


def test_exhausted_buffers_end_as_an_overrun_and_the_forward_is_not_held_up(
    server: SpoolServer, client: SpoolClient
) -> None:
    engine = Engine(server)
    rows = 1000
    blocked, late = make_sample(0, rows), make_sample(1, rows)
    assert 2 * engine.staging.shape.size_bytes(rows) > STAGING_BYTES
    with server._guard:  # the writer waits here, as behind a spool that does not answer
        engine.forward((blocked, 0, rows))
        engine.forward((late, 0, rows))
    engine.drain()

    assert_dump_is(client, blocked)
    failure = client.take_error(late.rid)
    assert failure.reason == ErrorReason.OVERRUN
    engine.forward((again := make_sample(1, rows, attempt=1), 0, rows))
    engine.drain()
    assert_dump_is(client, again)
    engine.recorder.close()


def test_a_forward_that_never_fits_says_which_setting_is_too_small(
    server: SpoolServer, client: SpoolClient
) -> None:
    engine = Engine(server, staging_bytes=1 << 10)
    request = make_sample(0, 400)

    engine.forward((request, 0, 400))
    engine.drain()

    failure = client.take_error(request.rid)
    assert failure.reason == ErrorReason.ENGINE
    assert "HSSTORE_STAGING_MB" in failure.detail
    engine.recorder.close()


def test_a_stopped_client_never_blocks_the_hook(server: SpoolServer, engine: Engine) -> None:
    code = """
import os, pathlib, signal, sys
from extraction.spool import ClientInfo, SpoolClient
client = SpoolClient(pathlib.Path(sys.argv[1]), ClientInfo(sys.argv[2], "store"))
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    command = [sys.executable, "-c", code, str(server.directory.path), RUN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

            for sample in range(50):
                engine.forward((make_sample(sample, 100), 0, 100))
                engine.drain()

            assert len(list(server.directory.path.glob("*.safetensors"))) == 50
        finally:
            process.kill()


@pytest.mark.parametrize("damage", ["aux", "final", "dtype", "width", "rows"])
def test_tensors_that_are_not_as_announced_end_the_request_with_the_reason(
    client: SpoolClient, engine: Engine, damage: str
) -> None:
    request = make_sample(0, 20)
    output, batch = make_forward([(request, 0, 20)])
    logits = output.logits_output
    assert logits.hidden_states is not None
    assert logits.last_hidden_states is not None
    if damage == "aux":
        logits.hidden_states = None
    elif damage == "final":
        logits.last_hidden_states = None
    elif damage == "dtype":
        logits.hidden_states = logits.hidden_states.half()
    elif damage == "width":
        logits.hidden_states = logits.hidden_states[:, :6]
    else:
        logits.last_hidden_states = logits.last_hidden_states[:19]

    engine.hook.after(output, batch)
    engine.drain()

    failure = client.take_error(request.rid)
    assert failure.reason == ErrorReason.ENGINE
    assert any(word in failure.detail for word in ("hidden states", "shape", "float16"))


class _Broken:
    """A tensor that fails in the middle of being copied."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, _: object) -> Any:
        raise RuntimeError("device lost")


def test_an_exception_in_the_middle_ends_the_batchs_requests_and_frees_the_buffer(
    client: SpoolClient, engine: Engine
) -> None:
    first, second = make_sample(0, 20), make_sample(1, 20)
    output, batch = make_forward([(first, 0, 20), (second, 0, 10)])
    assert output.logits_output.last_hidden_states is not None
    broken: Any = _Broken(output.logits_output.last_hidden_states)
    output.logits_output.last_hidden_states = broken

    engine.hook.after(output, batch)
    engine.drain()

    for request in (first, second):
        failure = client.take_error(request.rid)
        assert (failure.reason, "device lost" in failure.detail) == (ErrorReason.ENGINE, True)
    assert engine.staging.ring.used_bytes() == 0


def test_a_batch_of_another_shape_than_known_ends_its_requests(
    client: SpoolClient, engine: Engine
) -> None:
    request = make_sample(0, 20)
    output, batch = make_forward([(request, 0, 20)])
    batch.extend_prefix_lens_cpu = None  # type: ignore[assignment]

    engine.hook.after(output, batch)
    engine.drain()

    assert client.take_error(request.rid).reason == ErrorReason.ENGINE


def test_after_the_weights_were_replaced_requests_end_with_that_reason(
    client: SpoolClient, engine: Engine
) -> None:
    request = make_sample(0, 20)
    engine.hook.distrust("the weights were replaced")

    engine.forward((request, 0, 20))
    engine.drain()

    assert client.take_error(request.rid).detail == "the weights were replaced"

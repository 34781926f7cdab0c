"""A tiny random Llama, an engine without a model, and an HTTP server over either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from aiohttp.test_utils import TestClient, TestServer

from extraction.engines.embedded import ServeOptions, _server_info
from extraction.engines.http_server import make_app
from extraction.engines.worker import Worker
from extraction.spool import ClientInfo, RequestId, SpoolClient, SpoolServer
from tests.engines.arithmetic import ArithmeticEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

RUN = "0123456789ab"


@dataclass(frozen=True, slots=True)
class Served:
    """A running HTTP server and both sides of its spool."""

    engine: ArithmeticEngine
    http: TestClient[Any, Any]
    server: SpoolServer
    client: SpoolClient
    worker: Worker

    def rid(self, sample: int, rows: int) -> RequestId:
        """Name a request of this client."""
        return RequestId(RUN, sample, 0, rows)

    async def generate(self, **body: Any) -> tuple[int, Any]:
        """Post to `/generate`; returns status and answer."""
        body.setdefault("sampling_params", {"max_new_tokens": 0})
        async with self.http.post("/generate", json=body) as response:
            return response.status, await response.json()


@pytest.fixture
def spool_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as directory:
        yield Path(directory) / "spool"


@pytest.fixture
async def served(spool_path: Path) -> AsyncIterator[Served]:
    engine = ArithmeticEngine()
    with SpoolServer(spool_path) as server, SpoolClient(spool_path, ClientInfo(RUN, "s")) as client:
        options = ServeOptions(Path("unused"))
        server.announce(_server_info(engine.description, server, "http://x", options))
        worker = Worker(engine, server, piece_tokens=100, threads=1)
        try:
            app = make_app(worker, engine.description)
            http_server = TestServer(app, handler_cancellation=True)
            async with TestClient(http_server) as http:
                yield Served(engine, http, server, client, worker)
        finally:
            engine.go.set()
            worker.close()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a random Llama with 6 layers and hidden states of 64."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=1024,
        dtype="bfloat16",
    )
    path = tmp_path_factory.mktemp("tiny-llama")
    model = transformers.LlamaForCausalLM(config).bfloat16()
    with torch.no_grad():
        model.model.norm.weight.normal_(1, 0.2)
    model.save_pretrained(path)
    return path


@contextmanager
def _serving(model: Path | None, spool: Path, **options: Any) -> Iterator[tuple[Any, str]]:
    code = """
import asyncio, json, sys
from pathlib import Path
from extraction.engines.embedded import ServeOptions, serve, serve_engine
options = ServeOptions(Path(sys.argv[1]), spool=Path(sys.argv[2]), **json.loads(sys.argv[3]))
if sys.argv[1] == "None":
    from tests.engines.arithmetic import ArithmeticEngine
    asyncio.run(serve_engine(ArithmeticEngine, options))
else:
    serve(options)
"""
    arguments = [str(model), str(spool), json.dumps({"threads": 1, "layers": [0, 2, 5]} | options)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().split()
            yield process, line[1] if line else ""
        finally:
            process.kill()


@pytest.fixture
def serving() -> Callable[..., Any]:
    """Run `serve` in another process: a context manager of the process and its URL.

    Without a model it serves what is computed from the tokens, and imports no torch.
    """
    return _serving

"""Forwards as SGLang would hand them over, without SGLang; spools and clients are real ones."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from extraction.spool import ClientInfo, RequestId, ServerInfo, SpoolClient, SpoolServer
from hsstore_sglang.forward import ForwardHook
from hsstore_sglang.recorder import Recorder
from hsstore_sglang.staging import Shape, Staging
from tests.spool.given import HIDDEN, RUN, SLOTS, make_info

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

STAGING_BYTES = 64 << 10


@dataclass(frozen=True)
class Mode:
    """What a forward computes, as `ForwardMode` answers."""

    extend: bool = True
    verify: bool = False

    def is_extend(self) -> bool:
        """Answer as it does."""
        return self.extend

    def is_target_verify(self) -> bool:
        """Answer as it does."""
        return self.verify


@dataclass
class Batch:
    """The fields of `ForwardBatch` that the hook reads."""

    rids: list[str] | None
    extend_seq_lens_cpu: list[int]
    extend_prefix_lens_cpu: list[int]
    input_ids: torch.Tensor
    forward_mode: Mode = field(default_factory=Mode)


@dataclass
class Logits:
    """The fields of `LogitsProcessorOutput` that the hook reads."""

    hidden_states: torch.Tensor | None
    last_hidden_states: torch.Tensor | None


@dataclass
class Output:
    """`ModelRunnerOutput`."""

    logits_output: Logits


@dataclass(frozen=True)
class Sample:
    """One request, and the states that a model would compute for it."""

    rid: RequestId
    states: torch.Tensor
    """bfloat16, shape (T, slots, hidden): any bits."""
    ids: torch.Tensor

    @property
    def bits(self) -> npt.NDArray[np.uint16]:
        """Show the states as a dump holds them."""
        return self.states.view(torch.int16).numpy().view(np.uint16)


def make_sample(sample: int, rows: int, *, attempt: int = 0, run: str = RUN) -> Sample:
    generator = torch.Generator().manual_seed(1000 * sample + rows)
    bits = torch.randint(-(1 << 15), 1 << 15, (rows, SLOTS, HIDDEN), generator=generator)
    ids = torch.randint(0, 1 << 31, (rows,), generator=generator)
    rid = RequestId(run, sample, attempt, rows)
    return Sample(rid, bits.to(torch.int16).view(torch.bfloat16), ids)


def make_forward(
    parts: Sequence[tuple[Sample, int, int]], *, padding: int = 0
) -> tuple[Output, Batch]:
    """Compute the rows [start, stop) of each request in one forward."""
    states = torch.cat([one.states[low:high] for one, low, high in parts])
    ids = torch.cat([one.ids[low:high] for one, low, high in parts])
    if padding:  # rows that the engine made up, behind all real ones
        states = torch.cat([states, torch.full((padding, SLOTS, HIDDEN), 7.0, dtype=states.dtype)])
        ids = torch.cat([ids, torch.full((padding,), 7)])
    aux = states[:, :-1].reshape(len(ids), (SLOTS - 1) * HIDDEN).clone()
    batch = Batch(
        [str(one.rid) for one, _, _ in parts],
        [high - low for _, low, high in parts] + [padding] * bool(padding),
        [low for _, low, _ in parts] + [0] * bool(padding),
        ids,
    )
    return Output(Logits(aux, states[:, -1].clone())), batch


class Engine:
    """A server process: its hook, and forwards run through it."""

    def __init__(self, server: SpoolServer, staging_bytes: int = STAGING_BYTES) -> None:
        shape = Shape(SLOTS, HIDDEN, torch.bfloat16)
        self.staging = Staging(staging_bytes, shape, torch.device("cpu"))
        self.recorder = Recorder(server, self.staging)
        self.hook = ForwardHook(server, self.recorder, shape)

    def forward(self, *parts: tuple[Sample, int, int], padding: int = 0) -> None:
        """Run a forward, and rewrite its tensors at once, as the next forward would."""
        output, batch = make_forward(parts, padding=padding)
        self.hook.after(output, batch)
        for tensor in (output.logits_output.hidden_states, output.logits_output.last_hidden_states):
            if tensor is not None:
                tensor.fill_(-1.0)
        batch.input_ids.fill_(-1)

    def drain(self) -> None:
        """Wait until all that was handed over is in the spool."""
        self.recorder.drain()


@pytest.fixture
def spool_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hsstore-test-", dir="/dev/shm") as directory:
        yield Path(directory) / "spool"


@pytest.fixture
def info() -> ServerInfo:
    return make_info()


@pytest.fixture
def server(spool_path: Path, info: ServerInfo) -> Iterator[SpoolServer]:
    with SpoolServer(spool_path) as server:
        server.announce(info)
        yield server


@pytest.fixture
def client(server: SpoolServer) -> Iterator[SpoolClient]:
    with SpoolClient(server.directory.path, ClientInfo(RUN, "store-uuid")) as client:
        yield client


@pytest.fixture
def engine(server: SpoolServer) -> Iterator[Engine]:
    engine = Engine(server)
    yield engine
    engine.recorder.close()


def assert_dump_is(client: SpoolClient, sample: Sample) -> None:
    """Compare a dump with what the model computed, bit for bit."""
    with client.open_dump(sample.rid) as dump:
        assert np.array_equal(dump.hidden, sample.bits)
        assert dump.input_ids.tolist() == sample.ids.tolist()

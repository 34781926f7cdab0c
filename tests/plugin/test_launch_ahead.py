"""SGLang launches forwards before those before them are computed: a device's clock, emulated.

Behind the launch of forward k, forwards k and k-1 are still to be computed, k-2 is on its way to the
host, and k-3 is being written.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch
from typing_extensions import override

from hsstore_sglang.forward import ForwardHook
from hsstore_sglang.recorder import WAIT_SECONDS, Recorder
from hsstore_sglang.staging import Shape, Staging, default_staging_bytes
from tests.plugin.conftest import assert_dump_is, make_forward, make_sample
from tests.spool.given import HIDDEN, RUN, SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from extraction.spool import SpoolClient, SpoolServer
    from hsstore_sglang.slices import Run

SHAPE = Shape(SLOTS, HIDDEN, torch.bfloat16)
CUDA, CPU = torch.device("cuda"), torch.device("cpu")
CHUNK = 1001
"""Not a multiple of what the ring aligns to, in bytes."""


class _Arrival:
    """An event of a device that gets there when the test says so."""

    def __init__(self) -> None:
        self._happened = threading.Event()

    def happen(self) -> None:
        self._happened.set()

    def synchronize(self) -> None:
        """Wait, as `torch.cuda.Event` does."""
        self._happened.wait()


class _LateStaging(Staging):
    """Rows are taken in the order of the device's stream, and are there only later."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes, SHAPE, CPU)
        self.arrivals: list[_Arrival] = []
        self.threads: list[str] = []

    @override
    def use_in_this_thread(self) -> None:
        self.threads.append(threading.current_thread().name)

    @override
    def _copy(
        self,
        host: torch.Tensor,
        runs: Sequence[Run],
        aux: torch.Tensor,
        final: torch.Tensor,
        ids: torch.Tensor,
    ) -> _Arrival:
        super()._copy(host, runs, aux, final, ids)
        self.arrivals.append(_Arrival())
        return self.arrivals[-1]


class _LateEngine:
    """A scheduler that launches ahead of its device."""

    def __init__(self, server: SpoolServer, size_bytes: int) -> None:
        self.staging = _LateStaging(size_bytes)
        self.recorder = Recorder(server, self.staging)
        self.hook = ForwardHook(server, self.recorder, SHAPE)
        self._ended = 0

    def launch(self, output: object, batch: object) -> None:
        """Launch one more; meanwhile the one three before it arrives, and is being written."""
        self.hook.after(output, batch)  # type: ignore[arg-type]
        if len(self.staging.arrivals) - self._ended == 4:
            self._end_one()

    def finish(self) -> None:
        """Let the device compute all that was launched."""
        for arrival in self.staging.arrivals:
            arrival.happen()
        self.recorder.drain()

    def _end_one(self) -> None:
        used_bytes = self.staging.ring.used_bytes()
        self.staging.arrivals[self._ended].happen()
        self._ended += 1
        while self.staging.ring.used_bytes() == used_bytes:
            threading.Event().wait(0.001)


@pytest.fixture
def engine(server: SpoolServer) -> Iterator[_LateEngine]:
    engine = _LateEngine(server, default_staging_bytes(SHAPE, CHUNK, CUDA, least_bytes=0))
    yield engine
    engine.finish()
    engine.recorder.close()


def test_a_prompt_of_many_chunks_is_captured_though_forwards_are_launched_ahead(
    client: SpoolClient, engine: _LateEngine
) -> None:
    long = make_sample(0, 9 * CHUNK + 7)

    for low in range(0, long.rid.rows, CHUNK):
        engine.launch(*make_forward([(long, low, min(low + CHUNK, long.rid.rows))]))
    engine.finish()

    assert not client.scan().errors
    assert_dump_is(client, long)


def test_unequal_forwards_launched_ahead_leave_no_gap_that_matters(
    client: SpoolClient, engine: _LateEngine
) -> None:
    generator = torch.Generator().manual_seed(3)
    sizes = torch.randint(1, CHUNK + 1, (300,), generator=generator).tolist()
    requests = [
        make_sample(k, CHUNK if k % 3 == 0 else rows) for k, rows in enumerate(map(int, sizes))
    ]

    for request in requests:
        engine.launch(*make_forward([(request, 0, request.rid.rows)]))
    engine.finish()

    scan = client.scan()
    assert not scan.errors
    assert {rid.run for rid in scan.finished} == {RUN}
    for request in requests[::50]:
        assert_dump_is(client, request)


def test_a_forward_waits_for_the_writer_longer_than_for_a_hiccup(engine: _LateEngine) -> None:
    """A client's trouble never reaches it: only our own writer frees the buffer."""
    ring = engine.staging.ring
    assert ring.take(ring.size_bytes) == 0
    threading.Timer(0.02, lambda: ring.give_back(0)).start()

    offset = ring.take(64, wait_seconds=max(WAIT_SECONDS, 0.03))

    assert WAIT_SECONDS >= 0.03
    assert offset == 0
    ring.give_back(0)


def test_the_thread_that_waits_for_copies_is_told_which_device_they_come_from(
    engine: _LateEngine,
) -> None:
    engine.recorder.drain()

    assert engine.staging.threads == ["hsstore-writer"]


@pytest.mark.parametrize(("device", "forwards"), [(CUDA, 4), (CPU, 2)])
def test_the_buffer_holds_all_forwards_on_their_way_and_one_more_for_gaps(
    device: torch.device, forwards: int
) -> None:
    wide = Shape(4, 7168, torch.bfloat16)
    size_bytes = default_staging_bytes(wide, 2001, device)

    assert size_bytes % 64 == 0
    assert size_bytes >= (forwards + 1) * wide.size_bytes(2001)

"""Check the plugin's CUDA path on a machine with a GPU; it runs the plugin's own code, not a copy.

    python tools/check_capture_gpu.py
    python tools/check_capture_gpu.py --server http://127.0.0.1:30000 --spool /dev/shm/...

Without a server it needs torch and hsstore, not SGLang: the states come from a CUDA graph that
rewrites its output buffers with every replay, as SGLang's do. With a server, requests are also sent
to it, each alone and then all at once, and the two answers are compared.

Exit code 0: all passed; 1: something is wrong; 2: there is no CUDA device, nothing was checked.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from extraction.spool import ClientInfo, RequestId, SpoolClient
from hsstore_sglang.recorder import WAIT_SECONDS
from hsstore_sglang.settings import CUDA_CHECKED
from hsstore_sglang.slices import Run
from hsstore_sglang.staging import Shape, Staged, Staging, default_staging_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

LAYERS, HIDDEN, ROWS = 3, 7168, 2048
"""One chunk of a Kimi-K2.5 prefill: 117 MB."""
SHAPE: Final = Shape(LAYERS + 1, HIDDEN, torch.bfloat16)
CHUNK_BYTES: Final = SHAPE.size_bytes(ROWS)
ROUNDS = 50
PATIENT_SECONDS = 30.0
TOLERANCE = 0.05
"""Relative difference of the median row between a request alone and one in a batch."""


class Forward:
    """A CUDA graph whose outputs are the same buffers with every replay."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        generator = torch.Generator().manual_seed(0)
        shape = (ROWS, (LAYERS + 1) * HIDDEN)
        self.base = torch.randint(-30_000, 30_000, shape, generator=generator, dtype=torch.int16)
        base, self.step = self.base.to(device), torch.zeros((), dtype=torch.int16, device=device)
        self.bits = torch.zeros_like(base)
        self.ids = torch.zeros(ROWS, dtype=torch.int64, device=device)
        positions = torch.arange(ROWS, device=device)
        torch.cuda.synchronize(device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self.step.add_(1)
            torch.add(base, self.step, out=self.bits)
            torch.add(positions, self.step, out=self.ids)
        self._expected_step = 0

    def replay(self) -> int:
        """Run it on its stream; returns its number, which is in every value."""
        self._graph.replay()
        self._expected_step += 1
        return self._expected_step

    def outputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """States after the layers, final state, ids: views of the buffers."""
        states = self.bits.view(torch.bfloat16)
        return states[:, : LAYERS * HIDDEN], states[:, LAYERS * HIDDEN :], self.ids

    def is_right(self, staged: Staged, step: int, runs: list[Run]) -> bool:
        """Compare staged rows with what this replay wrote, bit for bit."""
        rows = np.concatenate([np.arange(run.offset, run.offset + run.rows) for run in runs])
        states, ids = staged.rows(0, len(rows))
        want = self.base.numpy()[rows] + np.int16(step)
        same_ids = np.array_equal(ids, rows.astype(np.int32) + step)
        return same_ids and np.array_equal(states.reshape(len(rows), -1), want)


def stage(
    staging: Staging, forward: Forward, runs: list[Run], wait_seconds: float
) -> Staged | None:
    """Do what the hook does behind a forward."""
    aux, final, ids = forward.outputs()
    return staging.stage(runs, aux, final, ids, wait_seconds=wait_seconds)


def check_bits_under_rewriting(forward: Forward, device: torch.device) -> str:
    """Stage and rewrite at once, many times, while a thread compares what arrived."""
    staging = Staging(3 * CHUNK_BYTES, SHAPE, device)
    arrived: queue.SimpleQueue[tuple[Staged, int, list[Run]] | None] = queue.SimpleQueue()
    wrong: list[int] = []

    def compare() -> None:
        while (item := arrived.get()) is not None:
            staged, step, runs = item
            staged.wait()
            if not forward.is_right(staged, step, runs):
                wrong.append(step)
            staged.release()

    thread = threading.Thread(target=compare)
    thread.start()
    for round_ in range(ROUNDS):
        runs = [Run(0, ROWS)] if round_ % 2 else [Run(3, 500), Run(700, 1), Run(1024, 1000)]
        step = forward.replay()
        staged = stage(staging, forward, runs, PATIENT_SECONDS)
        forward.replay()  # rewrites the buffers while the copy is on its way
        if staged is None:
            wrong.append(step)
        else:
            arrived.put((staged, step, runs))
    arrived.put(None)
    thread.join()
    return f"{len(wrong)} of {ROUNDS} forwards arrived changed" if wrong else ""


def check_launch_ahead(forward: Forward, device: torch.device) -> str:
    """Launch as SGLang's scheduler does, with the buffer and the patience of a server's plugin.

    It launches a forward, waits for the one before it, and launches the next: behind a launch, two
    forwards are still to be computed, and the last one that ended has not been written yet.
    """
    staging = Staging(default_staging_bytes(SHAPE, ROWS, device), SHAPE, device)
    weights = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    arrived: queue.SimpleQueue[tuple[Staged, int, list[Run]] | None] = queue.SimpleQueue()
    wrong: list[int] = []
    thread = threading.Thread(target=_write_all, args=(staging, forward, arrived, wrong))
    thread.start()
    refused, before = 0, None
    for round_ in range(ROUNDS):
        runs = [Run(0, ROWS if round_ % 3 else ROWS - 7 * round_)]
        for _ in range(64):  # some 100 ms, as a chunk of a large model takes
            torch.mm(weights, weights)
        step = forward.replay()
        staged = stage(staging, forward, runs, WAIT_SECONDS)
        ended = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        ended.record()
        if staged is None:
            refused += 1
        else:
            arrived.put((staged, step, runs))
        if before is not None:
            before.synchronize()
        before = ended
    arrived.put(None)
    thread.join()
    if refused:
        return f"{refused} of {ROUNDS} forwards found no room in the buffer"
    return f"{len(wrong)} of {ROUNDS} forwards arrived changed" if wrong else ""


def _write_all(
    staging: Staging,
    forward: Forward,
    arrived: queue.SimpleQueue[tuple[Staged, int, list[Run]] | None],
    wrong: list[int],
) -> None:
    """Copy all that arrives into memory, as the plugin's writer does; compare a part of it."""
    staging.use_in_this_thread()
    dump = np.zeros((ROWS, LAYERS + 1, HIDDEN), np.int16)
    while (item := arrived.get()) is not None:
        staged, step, runs = item
        staged.wait()
        rows = sum(run.rows for run in runs)
        dump[:rows] = staged.rows(0, rows)[0]
        staged.release()
        want = forward.base.numpy()[:rows:64] + np.int16(step)
        if not np.array_equal(dump[:rows:64].reshape(len(want), -1), want):
            wrong.append(step)


def check_exhaustion(forward: Forward, device: torch.device) -> str:
    """Fill the buffer, and see it refuse in time and recover."""
    staging = Staging(2 * CHUNK_BYTES, SHAPE, device)
    runs = [Run(0, ROWS)]
    steps, held = [], []
    for _ in range(2):
        steps.append(forward.replay())
        held.append(stage(staging, forward, runs, 0.0))
    began = time.monotonic()
    refused = stage(staging, forward, runs, 0.005) is None
    seconds = time.monotonic() - began
    for staged, step in zip(held, steps, strict=True):
        if staged is None:
            return "the buffer refused rows that fit"
        staged.wait()
        if not forward.is_right(staged, step, runs):
            return "held rows changed"
        staged.release()
    if not refused:
        return "a full buffer took more"
    print(f"  a full buffer refused within {1000 * seconds:.1f} ms")
    return "" if stage(staging, forward, runs, 0.0) is not None else "it did not recover"


def check_speed(forward: Forward, device: torch.device) -> str:
    """Measure the way to the host, alone and beside a computation, against a plain pinned copy."""
    staging = Staging(2 * CHUNK_BYTES, SHAPE, device)
    source = torch.empty(CHUNK_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True)
    weights = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)

    def plain() -> None:
        target.copy_(source, non_blocking=True)

    def compute() -> None:
        for _ in range(8):
            torch.mm(weights, weights)

    def staged() -> None:
        _stage_and_wait(staging, forward, lambda: None)

    def both() -> None:
        _stage_and_wait(staging, forward, compute)

    seconds = {run.__name__: _seconds(run, device) for run in (plain, staged, compute, both)}
    for name in ("plain", "staged"):
        print(f"  {name:7} {CHUNK_BYTES / seconds[name] / 1e9:6.1f} GB/s")
    print(
        f"  compute {1000 * seconds['compute']:.1f} ms, with a copy {1000 * seconds['both']:.1f} ms"
    )
    if seconds["staged"] > 3 * seconds["plain"]:
        return "staging is more than three times slower than a plain pinned copy"
    serial = seconds["compute"] + seconds["staged"]
    return "" if seconds["both"] < 0.95 * serial else "copies do not run beside the computation"


def _stage_and_wait(staging: Staging, forward: Forward, meanwhile: Callable[[], None]) -> None:
    one = stage(staging, forward, [Run(0, ROWS)], PATIENT_SECONDS)
    meanwhile()
    if one is not None:
        one.wait()
        one.release()


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    times = []
    for _ in range(12):
        torch.cuda.synchronize(device)
        began = time.monotonic()
        run()
        torch.cuda.synchronize(device)
        times.append(time.monotonic() - began)
    return sorted(times)[len(times) // 2]


def check_server(url: str, spool: Path, vocabulary: int) -> str:
    """Ask a running server for requests alone and all at once; compare ids exactly, states nearly."""
    random = np.random.default_rng(0)
    prompts = [random.integers(10, vocabulary, rows).tolist() for rows in range(50, 1650, 100)]
    with (
        SpoolClient(spool, ClientInfo("gpucheck", "check")) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        client.wait_for_server(PATIENT_SECONDS)
        alone = [_ask(client, url, sample, 0, ids) for sample, ids in enumerate(prompts)]
        jobs = [pool.submit(_ask, client, url, k, 1, ids) for k, ids in enumerate(prompts)]
        together = [job.result() for job in jobs]
    worst = 0.0
    for one, other in zip(alone, together, strict=True):
        distance = np.linalg.norm(one - other, axis=2) / np.linalg.norm(one, axis=2)
        worst = max(worst, float(np.median(distance, axis=0).max()))
    print(f"  the median row of the worst slot differs by {worst:.2%}")
    return "" if worst <= TOLERANCE else f"more than {TOLERANCE:.0%}"


def _ask(
    client: SpoolClient, url: str, sample: int, attempt: int, ids: list[int]
) -> npt.NDArray[np.float32]:
    rid = RequestId("gpucheck", sample, attempt, len(ids))
    body = {
        "rid": str(rid),
        "extra_key": str(rid),
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 0},
    }
    request = urllib.request.Request(  # noqa: S310 - the user's own URL
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=600).read()  # noqa: S310
    deadline = time.monotonic() + PATIENT_SECONDS
    while rid not in (scan := client.scan()).finished:
        if rid in scan.errors:
            raise RuntimeError(f"{rid}: {client.take_error(rid)}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{rid}: the server answered, and no dump came")
        time.sleep(0.01)
    with client.open_dump(rid) as dump:
        if dump.input_ids.tolist() != ids:
            raise RuntimeError(f"{rid}: the dump holds other tokens")
        states = _as_float(dump.hidden)
    client.discard(rid)
    return states


def _as_float(states: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    if states.dtype == np.uint16:  # bfloat16: the upper half of a float32
        return (states.astype(np.uint32) << 16).view(np.float32)
    return states.astype(np.float32)


def _checks(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], str]]]:
    device = torch.device("cuda", torch.cuda.current_device())
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    # SGLang computes on a stream of its own.
    with torch.cuda.stream(stream):
        forward = Forward(device, stream)
        yield (
            "bits, while the buffers are rewritten",
            lambda: check_bits_under_rewriting(forward, device),
        )
        yield "launching ahead of the device", lambda: check_launch_ahead(forward, device)
        yield "exhausted buffers", lambda: check_exhaustion(forward, device)
        yield "speed", lambda: check_speed(forward, device)
    if arguments.server:
        yield (
            f"requests to {arguments.server}",
            lambda: check_server(arguments.server, arguments.spool, arguments.vocabulary),
        )


def main() -> int:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", help="URL of a running server, started by `hsstore serve`")
    parser.add_argument("--spool", type=Path, help="its spool directory")
    parser.add_argument("--vocabulary", type=int, default=1000, help="token ids are below this")
    arguments = parser.parse_args()
    if arguments.server and not arguments.spool:
        parser.error("--server needs --spool")
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was checked")
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    failed = False
    for name, check in _checks(arguments):
        problem = check()
        failed = failed or bool(problem)
        print(f"{'FAILED' if problem else 'passed'}: {name}{': ' if problem else ''}{problem}")
    if not failed:
        print(f"set {CUDA_CHECKED}=1 in the environment of servers on this kind of GPU")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Everyone who can bring dumps to a disk. Each returns the nanoseconds until all is durable."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
import zarr
from typing_extensions import override
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.storage import LocalStore

from extraction.access import Access
from extraction.addresses import ServerAddress, Servers
from extraction.block_sink import BlockSink
from extraction.budget import ByteBudget
from extraction.fleet import Fleet
from extraction.flight import FlightCap
from extraction.handshake import model_of, norm_weight_of
from extraction.lane import Lane, Setting, link_to
from extraction.options import ExtractOptions
from extraction.pipeline import Pipeline
from extraction.requester import Requester
from extraction.work import Work
from hsstore.claims import Claims
from hsstore.codec import ChunkCodec, codec_metadata
from hsstore.create import Golden, LayoutOptions, create_store, layout_for
from hsstore.writer import LOOKAHEAD_CHUNKS
from tools.ingest.dumps import DUMPS_FOR

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from extraction.spool import Dump, RequestId
    from hsstore.layout import ChunkPlace
    from hsstore.store import Store
    from tools.ingest.dumps import Dumps

RUN = "ingest"
"""The pipeline's ids, which begin with it, name no file: what it gives back stays for others."""
LAYOUT = LayoutOptions(shard_rows=4096)
"""Shards of 235 MB at 7,168 wide, in which a large store's commits are not too rare to be seen."""
CORES = len(os.sched_getaffinity(0))

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


# --- hsstore --------------------------------------------------------------------------------------


class DumpsAreThere(Requester):
    """Answers every request with the dump of its sample."""

    def __init__(self, given: Dumps) -> None:
        self._given = given
        self._in_flight = set()
        self.on_answer = str

    @override
    def knows(self, instance: str) -> bool:
        return True

    @override
    async def wait_until_up(self) -> None:
        return

    @override
    async def fetch(
        self, rid: RequestId, input_ids: npt.NDArray[np.int32], *, prompt: bool = False
    ) -> Dump:
        return self._given.open(rid.sample)


def run_hsstore(given: Dumps, directory: Path) -> int:
    """Commit all dumps to a store that was planned before the clock started."""
    store = create_store(
        directory / "store.zarr",
        given.dataset,
        model_of(given.info),
        norm_weight=norm_weight_of(given.info),
        options=LAYOUT,
    )
    store.spec = store.spec.model_copy(update={"store": DUMPS_FOR})
    with Claims(store, RUN) as claims:
        claims.take(range(store.layout.spans))
        started = time.perf_counter_ns()
        asyncio.run(extract(store, claims, given))
        took = time.perf_counter_ns() - started
    if not store.completion().complete.all():
        raise RuntimeError("not all samples were committed")
    return took


async def extract(store: Store, claims: Claims, given: Dumps) -> None:
    """Run the pipeline of `hsstore extract`."""
    options = ExtractOptions(store=store.path)
    address = ServerAddress(url="", spool=given.spool.directory.path)
    setting = Setting(store, options, RUN, Access(), str)
    fleet = Fleet(setting, Servers((address,)), {})
    link = link_to(address, options, setting.access)
    link.up.set()
    lane = Lane(
        address=address,
        info=given.info,
        link=link,
        spool=given.spool,
        requester=DumpsAreThere(given),
        budget=ByteBudget(2 * given.nbytes),
        flight=FlightCap(options.max_in_flight),
        golden=Golden((), np.empty(0, np.uint16)),
    )
    sink = BlockSink(store, claims, RUN, CORES)
    pipeline = Pipeline(store, options, RUN, fleet, sink, Work(store, claims, options))
    fleet.on_join(lane)
    fleet.admission.open(lane)
    await pipeline.run()
    sink.close()


# --- the limit ------------------------------------------------------------------------------------


def run_limit(given: Dumps, directory: Path) -> int:
    """Encode the same chunks on all cores into one file, and fsync once."""
    layout = layout_for(given.dataset.length, model_of(given.info), LAYOUT)
    codec = ChunkCodec(layout.geometry.chunk_shape, "bfloat16")
    pending: deque[Future[tuple[npt.NDArray[np.uint8], int]]] = deque()

    def encode(bits: npt.NDArray[Any], place: ChunkPlace) -> tuple[npt.NDArray[np.uint8], int]:
        buffer = codec.take_buffer()
        return buffer, codec.encode_into(bits[place.rows, place.slots], buffer)

    started = time.perf_counter_ns()
    with ThreadPoolExecutor(CORES) as pool, (directory / "limit").open("wb", buffering=0) as file:

        def write(keep: int) -> None:
            while len(pending) > keep:
                buffer, size = pending.popleft().result()
                file.write(buffer[:size].data)
                codec.give_buffer(buffer)

        dumps = [given.open(sample) for sample in range(len(given.rids))]
        for sample, dump in enumerate(dumps):
            bits = dump.hidden.view("<u2")
            for place in layout.chunks_of(sample, len(bits)):
                pending.append(pool.submit(encode, bits, place))
                write(LOOKAHEAD_CHUNKS)
            del bits
        write(0)
        os.fsync(file.fileno())
        took = time.perf_counter_ns() - started
    for dump in dumps:
        dump.close()
    return took


# --- one file a sample ----------------------------------------------------------------------------


def states_of(dump: Dump) -> torch.Tensor:
    """Return the states of a dump, bfloat16 (T, 4, hidden), where they lie."""
    return torch.from_numpy(dump.hidden.view("<i2")).view(torch.bfloat16)


def save_pt(path: Path, dump: Dump) -> None:
    """Save as they are."""
    ids = torch.from_numpy(dump.input_ids)
    torch.save({"input_ids": ids, "hidden_states": states_of(dump)}, path.with_suffix(".pt"))


def save_safetensors(path: Path, dump: Dump) -> None:
    """Save as they are."""
    tensors = {"input_ids": torch.from_numpy(dump.input_ids), "hidden_states": states_of(dump)}
    safetensors.torch.save_file(tensors, path.with_suffix(".safetensors"))


def save_ckpt(path: Path, dump: Dump) -> None:
    """Save as SpecForge does: layers side by side, the final state, both with a batch of one."""
    states = states_of(dump)
    ids = torch.from_numpy(dump.input_ids).to(torch.int64)
    record = {
        "input_ids": ids,
        "loss_mask": torch.ones_like(ids),
        "hidden_state": states[:, -1].clone()[None],
        "aux_hidden_state": states[:, :-1].flatten(1)[None],
    }
    group = path.parent / "rows_0-2000"
    group.mkdir(exist_ok=True)
    torch.save(record, group / f"data_{path.name}.ckpt")


def one_file_a_sample(save: Callable[[Path, Dump], None]) -> Callable[[Dumps, Path], int]:
    """Return a contestant that saves every sample and makes its file durable."""

    def run(given: Dumps, directory: Path) -> int:
        started = time.perf_counter_ns()
        for sample in range(len(given.rids)):
            with given.open(sample) as dump:
                save(directory / str(sample), dump)
            for path in directory.rglob(f"*{sample}.*"):
                fsync(path)
        for folder in (*(path for path in directory.iterdir() if path.is_dir()), directory):
            fsync(folder)
        return time.perf_counter_ns() - started

    return run


def fsync(path: Path) -> None:
    """Make a file or a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- zarr-python ----------------------------------------------------------------------------------


def run_zarr_python(given: Dumps, directory: Path) -> int:
    """Gather whole shards in memory, have zarr-python write each, and make all files durable."""
    layout = layout_for(given.dataset.length, model_of(given.info), LAYOUT)
    sizes = layout.geometry
    blosc = codec_metadata("fast", sizes.itemsize)["configuration"]
    shard_shape = (sizes.shard_rows, sizes.slots, sizes.hidden)
    array = zarr.create_array(
        LocalStore(directory / "states.zarr"),
        shape=(layout.rows, sizes.slots, sizes.hidden),
        dtype="uint16",
        chunks=sizes.chunk_shape,
        shards=shard_shape,
        compressors=[BloscCodec(**blosc), Crc32cCodec()],
        fill_value=0,
    )
    shard = np.zeros(shard_shape, np.uint16)
    started = time.perf_counter_ns()
    for index in range(layout.blocks):
        block = layout.block(index)
        first = block.shards.start * sizes.shard_rows
        shard[:] = 0
        for sample in block.samples:
            with given.open(sample) as dump:
                row = int(layout.row_start[sample]) - first
                shard[row : row + len(dump.hidden)] = dump.hidden.view("<u2")
        array[first : first + sizes.shard_rows] = shard
    for path in (directory / "states.zarr").rglob("*"):
        fsync(path)
    return time.perf_counter_ns() - started


CONTESTANTS: dict[str, Callable[[Dumps, Path], int]] = {
    "hsstore": run_hsstore,
    "limit": run_limit,
    "torch_save": one_file_a_sample(save_pt),
    "ckpt": one_file_a_sample(save_ckpt),
    "safetensors": one_file_a_sample(save_safetensors),
    "zarr_python": run_zarr_python,
}

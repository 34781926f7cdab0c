"""Benchmark: every codec of `--codec` on the states of a real store, and on libblosc's encoder.

Prints ratio and GB/s (1 GB = 1e9 raw bytes) of encoding and decoding, by one thread (of its CPU
time) and by all cores (of wall time), beside the bounds that entropy sets, and writes them into build/bench.json:

* order-0: each value coded alone, by one table for all;
* per channel: the exponents of each (slot, channel) by a table of its own, sign and mantissa by
  one. Nothing that codes values alone does better.

Chunks are the store's: their padding counts as stored bytes, not as raw ones. Contestants take
turns, round by round, and figures are medians: on a shared machine only their ratios mean
something. All memory is touched before the clock starts, and the allocator keeps what it has:
first touch of a page costs more than encoding it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hsstore.codec import CODEC_NAMES, ChunkCodec, codec_metadata
from hsstore.codec.compressor import LibBlosc, Uncompressed
from hsstore.codec.metadata import fast_settings
from hsstore.dtype import exponent_bits, nan_bits
from hsstore.store import Store
from tools.bench_json import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Bits = npt.NDArray[Any]
    Bytes = npt.NDArray[np.uint8]

KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_ARENA_MAX": "1",
    "NUMPY_MADVISE_HUGEPAGE": "0",
}


@dataclass(frozen=True)
class Contestant:
    """One codec: its functions, and memory for what comes out."""

    name: str
    max_bytes: int
    encode: Callable[[Bits, Bytes], int]
    decode: Callable[[Bytes, Bits], None]


def contestants(store: Store) -> Iterator[Contestant]:
    """Yield all codecs, and libblosc's encoder with the settings of the default."""
    shape, dtype = store.spec.geometry.chunk_shape, store.spec.model.dtype
    for name in CODEC_NAMES:
        codec = ChunkCodec(shape, dtype, codec_metadata(name, store.bits.itemsize))
        yield Contestant(name, codec.max_bytes, codec.encode_into, codec.decode)
    plain = Uncompressed(shape, store.bits, nan_bits(dtype), 0)
    theirs = LibBlosc(fast_settings(store.bits.itemsize), plain)
    yield Contestant(
        "libblosc",
        theirs.max_bytes,
        lambda part, frame: theirs.encode(part, frame, None),
        lambda frame, out: theirs.decode(frame, out.reshape(-1).view(np.uint8)),
    )


def load_parts(store: Store, megabytes: int) -> list[Bits]:
    """Read chunks of complete samples, as a writer is given them: rows of a sample, not padded."""
    parts: list[Bits] = []
    left = megabytes * 1_000_000
    for sample in np.flatnonzero(store.completion().complete).tolist():
        bits = store.payload.read(sample)
        for place in store.layout.chunks_of(sample, len(bits)):
            parts.append(bits[place.rows, place.slots])
            left -= parts[-1].nbytes
        if left <= 0:
            break
    return parts


def entropy(counts: npt.NDArray[Any]) -> float:
    """Bits a symbol."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


def bounds(parts: list[Bits], store: Store) -> dict[str, float]:
    """Return the best ratios that coders of single values could reach.

    Of float32 the lower 16 bits are taken for noise.
    """
    width, exponent = 8 * store.bits.itemsize, exponent_bits(store.spec.model.dtype)
    field = ((1 << exponent) - 1) << (15 - exponent)
    all_values, sign_and_mantissa = np.zeros((2, 1 << 16), np.int64)
    chunks_a_row = store.spec.model.slots // store.spec.geometry.chunk_slots
    channels: list[Bits] = []
    for number, part in enumerate(parts):
        upper = (part >> (width - 16)).reshape(len(part), -1)
        all_values += np.bincount(upper.reshape(-1), minlength=1 << 16)
        sign_and_mantissa += np.bincount((upper & (0xFFFF ^ field)).reshape(-1), minlength=1 << 16)
        counts = np.zeros((upper.shape[1], 1 << exponent), np.int64)
        columns = np.broadcast_to(np.arange(upper.shape[1]), upper.shape)
        np.add.at(counts, (columns, (upper & field) >> (15 - exponent)), 1)
        if number < chunks_a_row:
            channels.append(counts)
        else:
            channels[number % chunks_a_row] += counts
    order0 = entropy(all_values) + width - 16
    exponents = statistics.fmean(entropy(channel) for counts in channels for channel in counts)
    per_channel = exponents + entropy(sign_and_mantissa) + width - 16
    return {"order0": width / order0, "per_channel": width / per_channel}


def _now(threads: int) -> int:
    """Nanoseconds of the one thread's CPU, which others on the machine take less of; or of the wall."""
    return time.process_time_ns() if threads == 1 else time.perf_counter_ns()


class Bench:
    """Times every contestant on the same chunks."""

    def __init__(self, store: Store, parts: list[Bits]) -> None:
        self._parts = parts
        self._raw_bytes = sum(part.nbytes for part in parts)
        self._contestants = list(contestants(store))
        largest = max(contestant.max_bytes for contestant in self._contestants)
        self._frames = [np.zeros(largest, np.uint8) for _ in parts]
        chunk = np.zeros(store.spec.geometry.chunk_shape, store.bits)
        self._outs = [chunk.copy() for _ in parts]
        self.ratios: dict[str, float] = {}
        self.speeds: dict[tuple[str, str], list[float]] = {}

    def round(self, threads: int, *, keep: bool) -> None:
        """Let everyone encode and decode all chunks once."""
        with ThreadPoolExecutor(threads) as pool:
            for contestant in self._contestants:
                encode, decode = contestant.encode, contestant.decode
                started = _now(threads)
                sizes = list(pool.map(encode, self._parts, self._frames))
                encoded_at = _now(threads)
                self.ratios[contestant.name] = self._raw_bytes / sum(sizes)
                frames = [f[:size] for f, size in zip(self._frames, sizes, strict=True)]
                decoding_at = _now(threads)
                list(pool.map(decode, frames, self._outs))
                decoded_at = _now(threads)
                self._check(contestant.name)
                if keep:
                    self._keep(contestant.name, f"encode_gbs_{threads}", encoded_at - started)
                    self._keep(contestant.name, f"decode_gbs_{threads}", decoded_at - decoding_at)

    def _keep(self, name: str, what: str, nanoseconds: int) -> None:
        self.speeds.setdefault((name, what), []).append(self._raw_bytes / nanoseconds)

    def _check(self, name: str) -> None:
        for part, out in zip(self._parts, self._outs, strict=True):
            if not np.array_equal(out[: len(part)], part):
                raise RuntimeError(f"{name} gave back other states")

    def results(self, bound: dict[str, float], threads: int) -> dict[str, dict[str, float]]:
        """Return the medians: `encode_gbs` of one thread, `encode_gbs_all` of all cores."""
        table = {}
        for contestant in self._contestants:
            name = contestant.name
            row = {
                "ratio": self.ratios[name],
                "bound": bound["per_channel" if name == "max" else "order0"],
            }
            for direction in ("encode_gbs", "decode_gbs"):
                for suffix, count in (("", 1), ("_all", threads)):
                    speeds = self.speeds[name, f"{direction}_{count}"]
                    row[direction + suffix] = statistics.median(speeds)
            table[name] = row
        return table


def show(table: dict[str, dict[str, float]], bound: dict[str, float], threads: int) -> None:
    """Print the table, and each speed relative to libblosc's encoder."""
    base = table["libblosc"]
    print(f"bounds of ratio: order-0 {bound['order0']:.3f}, per channel {bound['per_channel']:.3f}")
    print(f"GB/s by 1 thread and by {threads}; in brackets relative to libblosc's own encoder")
    for name, row in table.items():
        speeds = "  ".join(
            f"{what[:6]} {row[what]:5.2f} {row[what + '_all']:5.2f} ({row[what] / base[what]:4.2f})"
            for what in ("encode_gbs", "decode_gbs")
        )
        print(f"{name:<9} ratio {row['ratio']:.3f} of {row['bound']:.3f}  {speeds}")


def main() -> None:
    """Run the benchmark."""
    if any(name not in os.environ for name in KEEP_MEMORY):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})  # noqa: S606
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path, nargs="?", default=Path("demo/store.zarr"))
    parser.add_argument("--megabytes", type=int, default=100, help="raw states to take")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    store = Store.open(arguments.store)
    parts = load_parts(store, arguments.megabytes)
    threads = len(os.sched_getaffinity(0))
    bench = Bench(store, parts)
    for number in range(arguments.rounds + 1):
        for count in {1, threads}:
            bench.round(count, keep=number > 0)  # the first round warms up
    bound = bounds(parts, store)
    table = bench.results(bound, threads)
    raw = sum(part.nbytes for part in parts)
    print(f"{raw / 1e6:.0f} MB of {store.spec.model.id}, {len(parts)} chunks")
    show(table, bound, threads)
    record("codec", table)
    record("codec_bounds", bound)


if __name__ == "__main__":
    main()

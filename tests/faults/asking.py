"""Run `hsstore doctor` as anybody would, and wait for what it should say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema

from hsstore.report import Diagnosis

if TYPE_CHECKING:
    from hsstore.verdict import Verdict

SCHEMA = Path(__file__).parents[2] / "schemas" / "doctor.schema.json"
STALL_SECONDS = 4.0
PROBE_SECONDS = 3.0
PATIENCE_SECONDS = 120.0


def ask_doctor(store: Path | str, **process: Any) -> Diagnosis:
    """Run the command; `process` says as whom."""
    limits = ["--stalled-after", str(STALL_SECONDS), "--timeout", str(PROBE_SECONDS)]
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "hsstore",
        "doctor",
        store,
        "--json",
        *limits,
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS, **process
    )
    assert ended.stdout, ended.stderr
    jsonschema.validate(json.loads(ended.stdout), json.loads(SCHEMA.read_text()))  # type: ignore[no-untyped-call]
    diagnosis = Diagnosis.model_validate_json(ended.stdout)
    assert ended.returncode == diagnosis.verdict.exit_code, ended
    return diagnosis


def expect(store: Path | str, verdict: Verdict, **process: Any) -> Diagnosis:
    """Ask until the verdict is the expected one: a stall needs its seconds to be one."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        diagnosis = ask_doctor(store, **process)
        if diagnosis.verdict == verdict:
            return diagnosis
        assert time.monotonic() < deadline, diagnosis
        time.sleep(0.5)

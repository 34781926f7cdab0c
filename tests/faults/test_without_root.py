"""The doctor as another user: it says what it may not see, and its verdict holds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hsstore.report import Diagnosis
from hsstore.verdict import Verdict
from tests.extraction.processes import SMALL_STORE, Extraction
from tests.faults.conftest import SAMPLES
from tests.faults.fake import serving
from tests.faults.lab import freeze, thaw

if TYPE_CHECKING:
    from pathlib import Path

    from extraction.status import RunStatus

NOBODY = 54321
# Everything is loaded first: the interpreter may lie where another user cannot read it.
PROGRAM = """
import os, sys
import hsstore.cli, hsstore.cli.doctor
import extraction.diagnosis.examine, extraction.diagnosis.judge
import http.client, encodings.idna, zarr.core.sync, zarr.storage
from hsstore.store import Store
Store.open(sys.argv[1]).completion()
os.setgroups([])
os.setgid({user})
os.setuid({user})
sys.argv = ["hsstore", "doctor", sys.argv[1], "--json", "--timeout", "3", "--stalled-after", "3"]
hsstore.cli.main()
"""


def hangs(status: RunStatus) -> bool:
    """Tell whether a call into the file system is older than what counts as standing still."""
    calls = [one for one in status.stages if one.name.startswith("disk:")]
    now = time.time()
    return any(now - (one.oldest_since_seconds or now) > 4 for one in calls)


@pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root")
def test_another_user_gets_the_verdict_and_is_told_what_he_may_not_see(
    disk: Path, room: Path, data: Path
) -> None:
    store = disk / "s.zarr"
    room.chmod(0o755)
    with serving(room / "spool", SAMPLES) as server:
        server.slowly(1)
        run = Extraction(
            store, server, "--data", data, "--max-in-flight", "8", *SMALL_STORE, log=room / "log"
        )
        try:
            run.wait_for(lambda status: 10 < status.complete_now < SAMPLES // 2)
            freeze(disk)
            run.wait_for(hangs)
            program = PROGRAM.format(user=NOBODY)
            command: list[str | Path] = [sys.executable, "-c", program, store]
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=120, cwd="/"
            )
        finally:
            thaw(disk)
            run.kill()

    assert ended.stdout, ended.stderr
    diagnosis = Diagnosis.model_validate_json(ended.stdout)
    lines = "\n".join(diagnosis.evidence)
    assert diagnosis.verdict == Verdict.OUTPUT_BLOCKED, diagnosis
    assert ended.returncode == Verdict.OUTPUT_BLOCKED.exit_code
    assert "is in state D" in lines
    assert "wait channel not shown" in lines
    assert f"pages in /dev/shm/hsstore-{os.geteuid()} are another user's" in lines
    assert "it lives" in lines

"""The Slurm script when its run ends between the signal and the look whether it still runs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.extraction.processes import wait_until
from tests.watchdog.test_operations import catches

SCRIPT = Path(__file__).parents[2] / "docs" / "operations" / "extract.sbatch"
HSSTORE = """#!/bin/bash
[ "$1" = serve ] && exec sleep 60
trap 'exit 75' TERM
touch "$STARTED"
while :; do sleep 0.05; done
"""
SLOW_KILL = """
kill() {  # returns only when whom it told has ended
    builtin kill "$@" || return
    [ "$1" = -0 ] || while builtin kill -0 "$2" 2> /dev/null; do sleep 0.05; done
}
"""


def test_the_code_of_a_run_that_is_quicker_than_the_look_is_not_lost(tmp_path: Path) -> None:
    """Where only the first `wait` counted, the job would end with 138: the signal, not the run."""
    for name, text in {"hsstore": HSSTORE, "scontrol": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "slow_kill").write_text(SLOW_KILL)
    started = tmp_path / "started"
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "BASH_ENV": str(tmp_path / "slow_kill"),
        "STARTED": str(started),
        "MODEL": "/model",
        "STORE": "/data/s.zarr",
        "SLURM_JOB_ID": "7",
    }
    job = subprocess.Popen(
        ["bash", SCRIPT],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not started.exists():
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        wait_until(lambda: catches(job.pid, signal.SIGUSR1))
        time.sleep(0.3)
        job.send_signal(signal.SIGUSR1)
        output, _ = job.communicate(timeout=60)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()

    assert job.returncode == 75
    assert b"requeued" in output

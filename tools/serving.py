"""Run hsstore as a user does: its commands, and `hsstore serve` for as long as it is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HSSTORE = Path(sys.executable).with_name("hsstore")
READY_SECONDS = 600.0
STOP_SECONDS = 60.0


@contextmanager
def serving(model: Path, log: Path, *options: str | Path) -> Iterator[tuple[str, str]]:
    """Serve a model on a free port; yield the server's URL and its spool."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [HSSTORE, "serve", model, "--port", "0", *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _wait_until_ready(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=STOP_SECONDS)


def hsstore(*arguments: object) -> None:
    """Run a command of hsstore to its end.

    Raises
    ------
    CalledProcessError
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([str(HSSTORE), *map(str, arguments)], check=True, env=environment)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    """Wait for the server's line `ready URL spool DIR`."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("ready "):
                _, url, _, spool = line.split(" ", 3)
                return url, spool
        time.sleep(0.1)
    sys.exit(f"the server did not get ready; its log:\n{log.read_text()}")

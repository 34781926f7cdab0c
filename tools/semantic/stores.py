"""Make the study's stores as a user would: `hsstore serve`, then `hsstore extract`."""

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
def served(model: Path, log: Path) -> Iterator[tuple[str, str]]:
    """Serve a model on a free port, one forward at a time; yield its URL and its spool."""
    command = [HSSTORE, "serve", model, "--port", "0", "--threads", "1"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*map(str, command)], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield _wait(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=STOP_SECONDS)


def _wait(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("ready "):
                _, url, _, spool = line.split(" ", 3)
                return url, spool
        time.sleep(0.2)
    raise SystemExit(f"the server did not get ready:\n{log.read_text()}")


def extract(store: Path, chats: Path, model: Path, served: tuple[str, str], tokens: int) -> None:
    """Fill a store from a file of conversations, each cut to so many tokens; or finish it."""
    command = [HSSTORE, "extract", store, "--server", served[0], "--spool", served[1]]
    data = ["--data", chats, "--model", model, "--max-tokens", tokens, "--min-loss-tokens", 0]
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([*map(str, [*command, *data])], check=True, env=quiet)

"""Make the study's stores as a user would: with `hsstore extract`."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tools.serving import HSSTORE

if TYPE_CHECKING:
    from pathlib import Path


def extract(store: Path, chats: Path, model: Path, served: tuple[str, str], tokens: int) -> None:
    """Fill a store from a file of conversations, each cut to so many tokens; or finish it."""
    command = [HSSTORE, "extract", store, "--server", served[0], "--spool", served[1]]
    data = ["--data", chats, "--model", model, "--max-tokens", tokens, "--min-loss-tokens", 0]
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([*map(str, [*command, *data])], check=True, env=quiet)

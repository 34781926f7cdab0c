"""Make the study's stores as a user would: with `hsstore extract`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.serving import hsstore

if TYPE_CHECKING:
    from pathlib import Path


def extract(store: Path, chats: Path, model: Path, served: tuple[str, str], tokens: int) -> None:
    """Fill a store from a file of conversations, each cut to so many tokens; or finish it."""
    server = ("--server", served[0], "--spool", served[1])
    data = ("--data", chats, "--model", model, "--max-tokens", tokens, "--min-loss-tokens", 0)
    hsstore("extract", store, *server, *data)

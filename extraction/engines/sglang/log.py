"""The log of SGLang: where it goes, and what to quote of it."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hsstore.errors import InputError

if TYPE_CHECKING:
    from typing import BinaryIO

TAIL_LINES: Final = 40
_TAIL_BYTES: Final = 64 << 10
_OUR_MARK: Final = "hsstore:"


def default_log(port: int) -> Path:
    """Name the log of the server at `port`, for the current user: state, not data, not /tmp."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "hsstore" / f"sglang-{port}.log"


def open_log(path: Path) -> BinaryIO:
    """Open a new log; the one before it stays, as `NAME.old`.

    Raises
    ------
    InputError
        It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            path.replace(path.with_name(path.name + ".old"))
        return path.open("ab")
    except OSError as error:
        raise InputError(f"cannot write SGLang's log: {error}; choose a file with --log") from None


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines; none where there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


def plugin_lines(path: Path) -> list[str]:
    """Return what our plugin wrote into it, the last lines."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return list(deque((line.rstrip() for line in file if _OUR_MARK in line), TAIL_LINES))
    except OSError:
        return []


def quote(path: Path, lines: list[str]) -> str:
    """Put lines and the log's path under a message."""
    return "\n".join(["", *(f"  | {line}" for line in lines), f"the whole log: {path}"])

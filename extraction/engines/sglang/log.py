"""The log of SGLang: where it goes, and what to quote of it."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hsstore.errors import InputError

if TYPE_CHECKING:
    from typing import BinaryIO

TAIL_LINES: Final = 40
_TAIL_BYTES: Final = 64 << 10
_OUR_MARK: Final = "hsstore:"
_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_SECRET: Final = re.compile(
    r"""
    (?P<before>
        (?P<opened>['"])?                                     # around the name, or all of it
        (?:--)?(?:(?:admin|)[-_]?api[-_]key|ssl[-_]keyfile[-_]password)
        (?: (?(opened)(?P=opened)) \s*[,:=]\s* | = | \s+ (?=\S) (?<=[a-z]\s) )
    )
    (?P<quote>['"])?
    (?!None\b|null\b)
    (?(quote) (?:(?!(?P=quote)).)+ | (?(opened) (?:(?!(?P=opened)).)+ | [^\s,)]+ ) )
    """,
    re.VERBOSE | re.IGNORECASE,
)


def default_log(port: int) -> Path:
    """Name the log of the server at `port`, for the current user: state, not data, not /tmp."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "hsstore" / f"sglang-{port}.log"


def open_log(path: Path) -> BinaryIO:
    """Open a new log that only its owner can read: SGLang prints its arguments, keys included.

    The one before it stays, as `NAME.old`.

    Raises
    ------
    InputError
        It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            path.chmod(0o600)  # of an earlier version, or of a shell's redirection
            path.replace(path.with_name(path.name + ".old"))
        return open(os.open(path, _APPEND, 0o600), "ab")  # noqa: PTH123  # of a descriptor
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
    return [mask(line.rstrip()) for line in text.splitlines() if line.strip()][-lines:]


def plugin_lines(path: Path) -> list[str]:
    """Return what our plugin wrote into it, the last lines."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = deque((line.rstrip() for line in file if _OUR_MARK in line), TAIL_LINES)
            return list(map(mask, lines))
    except OSError:
        return []


def mask(line: str) -> str:
    """Hide keys and passwords in a line of the log, however SGLang writes its arguments.

    >>> mask("ServerArgs(api_key='sk-1', admin_api_key=None, port=1)")
    "ServerArgs(api_key='***', admin_api_key=None, port=1)"
    >>> mask("['--api-key', 'sk-1', '--ssl-keyfile-password=a b', '--tp', '1']")
    "['--api-key', '***', '--ssl-keyfile-password=***', '--tp', '1']"
    >>> mask("launch_server --admin-api-key sk-1 --tp 1")
    'launch_server --admin-api-key *** --tp 1'
    >>> mask('{"api_key": "sk-1", "tp_size": 1}')
    '{"api_key": "***", "tp_size": 1}'
    """
    return _SECRET.sub(lambda found: f"{found['before']}{found['quote'] or ''}***", line)


def quote(path: Path, lines: list[str]) -> str:
    """Put lines and the log's path under a message."""
    return "\n".join(["", *(f"  | {line}" for line in lines), f"the whole log: {path}"])

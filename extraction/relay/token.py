"""The token that client and relay share: from a file or the environment, never from an argument."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hsstore.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

TOKEN_VARIABLE = "HSSTORE_RELAY_TOKEN"  # noqa: S105  # its name


def read_token(path: Path | None, option: str) -> str:
    """Read the token from its file, else from `HSSTORE_RELAY_TOKEN`; empty where there is none.

    Parameters
    ----------
    option : str
        The option that named the file, for messages.

    Raises
    ------
    InputError
        The file cannot be read, or what is given is not one word.
    """
    where = f"{option} {path}" if path else TOKEN_VARIABLE
    try:
        token = (path.read_text("utf-8") if path else os.environ.get(TOKEN_VARIABLE, "")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot read the token ({type(error).__name__})") from None
    if path and not token:
        raise InputError(f"{where}: the file is empty")
    if not (token.isascii() and token.isprintable()) or " " in token:
        # Not shown: it may be the token with a line too many.
        raise InputError(f"{where}: not one token: it has a space, a line end or an odd character")
    return token

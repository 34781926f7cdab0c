"""What it takes to be let in by a server: an API key, and a certificate authority to trust."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from extraction.relay.mirrors import Mirrors
from extraction.relay.token import read_token
from hsstore.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

KEY_VARIABLE = "HSSTORE_API_KEY"


@dataclass(frozen=True, slots=True)
class Access:
    """Secrets stay in here: they are in no options, no log, no status and no store."""

    api_key: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    """None: the system's certificate authorities."""
    mirrors: Mirrors = field(default_factory=Mirrors)
    """Of the spools that are behind relays; it knows their token."""


def read_access(
    api_key_file: Path | None, ca_cert: Path | None, relay_token_file: Path | None = None
) -> Access:
    """Read the key from its file, else from `HSSTORE_API_KEY`, and the private CA if there is one.

    The token for relays likewise, from its file or `HSSTORE_RELAY_TOKEN`.

    Raises
    ------
    InputError
        A file cannot be read, or does not hold what it should.
    """
    tls = _trust(ca_cert) if ca_cert else None
    token = read_token(relay_token_file, "--relay-token-file")
    return Access(_api_key(api_key_file), tls, Mirrors(token, tls))


def _api_key(path: Path | None) -> str:
    where = f"--api-key-file {path}" if path else KEY_VARIABLE
    try:
        key = (path.read_text("utf-8") if path else os.environ.get(KEY_VARIABLE, "")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot read the key ({type(error).__name__})") from None
    if path and not key:
        raise InputError(f"{where}: the file is empty")
    if not (key.isascii() and key.isprintable()) or " " in key:
        # Not shown: it may be the key with a line too many.
        raise InputError(f"{where}: not one key: it has a space, a line end or a special character")
    return key


def _trust(ca_cert: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_cert))
    except (OSError, ssl.SSLError) as error:  # a file that is not PEM is an SSLError
        raise InputError(
            f"--ca-cert {ca_cert}: cannot be used ({error}); it must hold the certificate of the "
            "authority that signed the server's, in PEM"
        ) from None

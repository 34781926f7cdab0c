"""Which servers to ask: URL and spool of each, from the command line and from a file."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from extraction.relay.mirrors import is_relay, mirror_path
from extraction.spool import default_spool
from hsstore.errors import InputError
from hsstore.location import locate, require_local
from hsstore.spec import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks at a servers file."""


class ServerAddress(Record):
    """Where one server is."""

    url: str
    """Base URL, such as http://127.0.0.1:30000. No secret is in it."""
    spool: Path
    """On this machine; of a relay's, where it is mirrored."""
    relay: str = ""
    """URL of the relay that the spool is behind; empty: it is on this machine."""

    @property
    def memory_host(self) -> str:
        """Whose memory its server's dumps take: the relay's host; empty: this machine."""
        return urlsplit(self.relay).hostname or ""


def parse_address(option: str, text: str, spool: Path | None = None) -> ServerAddress:
    """Split URL=SPOOL, and fill in the default spool of a port.

    Raises
    ------
    InputError
        It is no URL, or has a password in it, or no port while no spool is named.
    """
    url, _, path = text.partition("=")
    url = url.rstrip("/")
    if "@" in url:  # not shown: status, log and store would have it too
        raise InputError(
            f"{option}: no user or password in a URL, please: put an API key into HSSTORE_API_KEY "
            "or a file for --api-key-file"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{option} {url}: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise InputError(f"{option} {url}: not a URL such as http://127.0.0.1:30000")
    if is_relay(path):
        return ServerAddress(
            url=url, spool=spool or mirror_path(path), relay=_parse_relay(option, path)
        )
    if path or spool:
        local = (
            require_local(locate(path), f"{option}: a spool is in") if path else Path(spool or "")
        )
        return ServerAddress(url=url, spool=local)
    if port is None:
        raise InputError(f"{option} {url}: no port, so its spool is needed: give URL=SPOOL")
    return ServerAddress(url=url, spool=default_spool(port))


def _parse_relay(option: str, relay: str) -> str:
    try:
        parts = urlsplit(relay)
        wrong = "@" in relay or parts.query or parts.fragment or not parts.port
    except ValueError:
        wrong = True
    if wrong:  # not shown: it may have a password in it
        raise InputError(
            f"{option}: the relay behind = is not a URL such as http://gpu1:31000, without user, "
            "password or anything behind ?; its token goes into HSSTORE_RELAY_TOKEN"
        )
    return relay


def read_servers_file(path: Path) -> tuple[ServerAddress, ...]:
    """Read a file with one URL[=SPOOL] a line; `#` begins a comment. Blocks.

    Raises
    ------
    InputError
        It cannot be read, or a line is no such address.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a mark before the text
    except (OSError, ValueError) as error:
        raise InputError(f"--servers-file {path}: {error}") from error
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return tuple(
        parse_address(f"{path}, line {number}", line)
        for number, line in enumerate(lines, start=1)
        if line
    )


def distinct(addresses: Iterable[ServerAddress]) -> tuple[ServerAddress, ...]:
    """Return each address once, in order. Blocks: it follows the spools' links.

    Raises
    ------
    InputError
        Two servers have one spool, or one URL has two.
    """
    by_url: dict[str, ServerAddress] = {}
    by_spool: dict[str, ServerAddress] = {}
    for one in addresses:
        url, spool = one.url.rstrip("/"), os.path.realpath(one.spool)
        same = by_url.setdefault(url, one)
        if os.path.realpath(same.spool) != spool:
            raise InputError(
                f"{url} is given twice, with the spools {same.spool} and {one.spool}: a server has one"
            )
        holder = by_spool.setdefault(spool, one)
        if holder.url.rstrip("/") != url:
            raise InputError(
                f"{holder.url} and {one.url} cannot share the spool {one.spool}: each server has its "
                "own; give the one that `hsstore serve` printed, as URL=SPOOL"
            )
    return tuple(by_url.values())


class Servers:
    """Who is to be asked: those of the command line, and those of a file that may change.

    Attributes
    ----------
    last : tuple of ServerAddress
        What `read` returned last; before, those of the command line.
    """

    def __init__(self, named: tuple[ServerAddress, ...], file: Path | None = None) -> None:
        self.file = file
        self.last = self._named = named
        self._was_good = False
        self._said = ""

    def read(self) -> tuple[ServerAddress, ...]:
        """Return all that are wanted now, each once. Blocks.

        What is wrong in a file that was good before is said once, and changes nothing.

        Raises
        ------
        InputError
            The file cannot be read, or two servers have one spool.
        """
        try:
            in_file = read_servers_file(self.file) if self.file else ()
            self.last = distinct((*self._named, *in_file))
        except InputError as error:
            if not self._was_good:
                raise
            if str(error) != self._said:
                log.warning("%s; nothing is changed", error)
            self._said = str(error)
        else:
            self._was_good, self._said = True, ""
        return self.last

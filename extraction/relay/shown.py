"""What a mirror shows of the server in its local directory, apart from the dumps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from extraction.relay.local import LocalSpool
    from extraction.relay.protocol import Listing
    from extraction.spool import RequestId


class Shown:
    """Keeps the directory as the last listing says. For one thread at a time."""

    def __init__(self, local: LocalSpool) -> None:
        self._local = local
        self._announced = ""
        self._parts: set[RequestId] = set()
        self._failed: set[RequestId] = set()

    def server(self, listing: Listing, read_json: Callable[[], bytes | None]) -> None:
        """Show whether a server is there, what it says of itself, and what room it has.

        Parameters
        ----------
        read_json
            Asks for server.json; None: it is gone.
        """
        if not listing.alive:
            self._announced = ""
            self._local.let_go()
            return
        self._local.limit(listing.room_bytes)
        self._local.hold()
        if listing.info == self._announced:
            return
        self._local.retract()
        self._announced = ""
        text = read_json() if listing.info else None
        if text is not None:
            self._local.announce(_without_log(text))
            self._announced = listing.info

    def files(self, listing: Listing, run: str, released: Container[RequestId]) -> None:
        """Show failed captures, and those of one run that are under way; not those released here."""
        for rid, reason in listing.errors.items():
            if rid not in self._failed and rid not in released:
                self._local.fail(rid, reason)
        self._failed = set(listing.errors)
        parts = {rid for rid in listing.partial if rid.run == run and rid not in released}
        self._local.show_parts(parts - self._parts)
        self._local.hide_parts(self._parts - parts - listing.finished.keys())
        self._parts = parts


def _without_log(server_json: bytes) -> bytes:
    """Leave out the path of the server's log: here it would name another file, or none."""
    try:
        content = json.loads(server_json)
        content["log_path"] = ""
    except (TypeError, ValueError):
        return server_json  # whoever reads it will say what is wrong
    return json.dumps(content, indent=1).encode()

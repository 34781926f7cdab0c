"""The mirrors of a run: each is made when it is first needed, and lives until the run ends."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from extraction.relay.mirror import Mirror
from extraction.relay.wire import RelayAddress
from extraction.spool import default_spool

if TYPE_CHECKING:
    import ssl
    from pathlib import Path


def is_relay(spool: str) -> bool:
    """Tell whether what stands for a spool is a relay's URL.

    >>> is_relay("http://gpu1:31000"), is_relay("/dev/shm/http")
    (True, False)
    """
    return spool.startswith(("http://", "https://"))


def mirror_path(relay: str) -> Path:
    """Name the local directory of a relay's spool: the same for every run, so it is used again.

    >>> mirror_path("http://gpu1:31000").name
    'relay-gpu1-31000'
    """
    parts = urlsplit(relay)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{parts.netloc}{parts.path}").strip("-")
    return default_spool(0).with_name(f"relay-{name}")


@dataclass(slots=True)
class Mirrors:
    """Makes mirrors, and closes them in the end. An asynchronous context manager."""

    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    _open: dict[Path, Mirror] = field(default_factory=dict)
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def at(self, relay: str, path: Path) -> Mirror:
        """Return the mirror at a directory; a new one in place of one that is broken.

        Raises
        ------
        SpoolForeignError, SpoolBusyError
            The directory is somebody else's, or another mirror lives there.
        """
        async with self._making:
            known = self._open.get(path)
            if known is not None and known.broken is None:
                return known
            if known is not None:
                await self._open.pop(path).__aexit__()
            address = RelayAddress(relay.rstrip("/"), self.token, self.tls)
            # Not in a thread: cancelled there, it would be made, and known to nobody.
            mirror = Mirror(address, path)
            self._open[path] = await mirror.__aenter__()
            return mirror

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._open:
            await self._open.popitem()[1].__aexit__()

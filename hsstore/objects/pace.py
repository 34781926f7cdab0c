"""How long requests may take: any silence ends one, and so does what is too slow altogether."""

from __future__ import annotations

import asyncio

CONNECT_SECONDS = 10
READ_SECONDS = 60
"""Without a byte for so long, an attempt is given up."""
SLOWEST_BYTES = 1 << 20
"""A second, on top of that: what comes slower is asked for again."""
SLOWEST_SENT_BYTES = 128 << 10
"""As SLOWEST_BYTES, of what is sent: several parts share a line, so each may be slower than what is read."""
CONNECTIONS = 64


def receiving(size_bytes: int) -> asyncio.Timeout:
    """Give an answer up that comes too slowly."""
    return asyncio.timeout(READ_SECONDS + size_bytes / SLOWEST_BYTES)


def sending(body: bytes) -> asyncio.Timeout:
    """Give an attempt up that takes too long: aiohttp counts no silence before all of a body is sent."""
    return asyncio.timeout(READ_SECONDS + len(body) / SLOWEST_SENT_BYTES)

"""The crc32c that stores compare with what came, in the form that all of them have it."""

from __future__ import annotations

import base64
import struct

import google_crc32c


def crc32c(data: bytes, before: str = "") -> str:
    """Return the crc32c of data, or of data behind what has the checksum `before`."""
    begun = struct.unpack(">I", base64.b64decode(before))[0] if before else 0
    return base64.b64encode(struct.pack(">I", google_crc32c.extend(begun, data))).decode()

"""Keep this process's code in memory: its files may lie on the disk that stands still."""

from __future__ import annotations

import ctypes
import os

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
"""From <sys/mman.h>."""


def keep_in_memory() -> bool:
    """Pin what has been used so far; return whether the kernel allowed it.

    Only pages that were touched are pinned. Without the right to pin without limit, memory of the
    future is left alone: pinning it could make an allocation fail.
    """
    future = _MCL_FUTURE if os.geteuid() == 0 else 0
    result: int = ctypes.CDLL(None).mlockall(_MCL_CURRENT | future | _MCL_ONFAULT)
    return result == 0

"""How many bytes a spool may still take: tmpfs, machine and memory cgroup, less a reserve.

Reserving a file in a memory-limited container is not refused: the kernel kills. Only looking first
helps, so server and client both count what is left in every place where a limit may be.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

RESERVE_BYTES: Final = 64 << 20
"""Kept free of every limit, or a sixteenth of the limit where that is less."""

_PROC: Final = Path("/proc")
_CGROUP: Final = Path("/sys/fs/cgroup")


def headroom_bytes(spool: Path, *, proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Count the bytes that new files in `spool` may take, >= 0."""
    status = os.statvfs(spool)
    bound = (status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)
    return min(_less_reserve(*bound), available_bytes(proc=proc, cgroup=cgroup))


def available_bytes(*, proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Count the bytes of memory that this process may take, wherever they lie, >= 0."""
    return min(_less_reserve(*bound) for bound in (_machine(proc), *_cgroups(proc, cgroup)))


def _less_reserve(free_bytes: int, size_bytes: int) -> int:
    return max(0, free_bytes - min(RESERVE_BYTES, size_bytes // 16))


def _machine(proc: Path) -> tuple[int, int]:
    """Bytes available and in total: a tmpfs may promise more than there is."""
    lines = (proc / "meminfo").read_text().splitlines()
    kib = {key: int(value.split()[0]) for key, value in (line.split(":", 1) for line in lines)}
    return kib["MemAvailable"] << 10, kib["MemTotal"] << 10


def _cgroups(proc: Path, root: Path) -> Iterator[tuple[int, int]]:
    """Bytes left and limit of this process's memory cgroup and all its parents."""
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _walk(root, path, "memory.max", "memory.current")
            yield from _walk(root / "unified", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _walk(root / "memory", path, *names)


def _walk(mount: Path, path: str, limit: str, usage: str) -> Iterator[tuple[int, int]]:
    # Inside a container the own cgroup is often mounted as the root, and `path` leads nowhere:
    # the directories that do exist on the way are the ones that matter.
    directory = mount / path.lstrip("/")
    for place in (directory, *directory.parents):
        bound = _bound(place, limit, usage)
        if bound is not None:
            yield bound
        if place == mount:
            return


def _bound(directory: Path, limit: str, usage: str) -> tuple[int, int] | None:
    try:
        text = (directory / limit).read_text().strip()
        used = int((directory / usage).read_text())
        statistics = (directory / "memory.stat").read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    if text == "max":
        return None
    # Cached file pages count as used, but make room when asked to.
    cached = {name: int(value) for name, value in (line.split() for line in statistics)}
    reclaimable = cached.get("total_inactive_file", cached.get("inactive_file", 0))
    return int(text) - used + reclaimable, int(text)

"""A disk of a chosen speed: ext4 on a loop device, read by a process whose reads are limited.

Needs root and a block I/O cgroup of version 1. Buffered reads count, whoever else has cached the image.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tools.reading.samples import drop_from_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

BLKIO = Path("/sys/fs/cgroup/blkio")
BURST_SECONDS = 0.3
"""The kernel limits by slices of 0.1 seconds."""


def problem() -> str | None:
    """Say why there can be no such disk here."""
    if os.geteuid():
        return "it needs root"
    if not (BLKIO / "tasks").exists():
        return f"there is no block I/O cgroup of version 1 at {BLKIO}"
    return None


@contextmanager
def mounted_image(directory: Path, size_bytes: int) -> Iterator[Path]:
    """Make a file system in a file of `directory`, and mount it."""
    image, mount = directory / "slow.img", directory / "slow"
    mount.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(size_bytes)
    try:
        subprocess.run(
            ["mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0", image], check=True
        )
        subprocess.run(["mount", "-o", "loop", image, mount], check=True)
        try:
            yield mount
        finally:
            subprocess.run(["umount", mount], check=True)
    finally:
        image.unlink()
        mount.rmdir()


@contextmanager
def limited_reads(mount: Path, bytes_per_second: int) -> Iterator[None]:
    """Limit what this process reads from the device of a mount."""
    device = mount.stat().st_dev
    group = BLKIO / f"hsstore-bench-{os.getpid()}"
    before = BLKIO / _own_group().lstrip("/")
    group.mkdir()
    try:
        rule = f"{os.major(device)}:{os.minor(device)} {bytes_per_second}"
        (group / "blkio.throttle.read_bps_device").write_text(rule)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        with suppress(OSError):
            group.rmdir()


def write_burst(path: Path, bytes_per_second: int) -> Path:
    """Write a file that takes longer to read than any time that the limit is averaged over."""
    path.write_bytes(bytes(int(bytes_per_second * BURST_SECONDS)))
    os.sync()
    return path


def spend(burst: Path) -> None:
    """Read a file from the disk: after a pause the first bytes would come at any speed."""
    drop_from_cache(burst)
    burst.read_bytes()


def _own_group() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "blkio" in controllers.split(","):
            return path
    return "/"

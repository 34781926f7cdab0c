"""File systems that are small, full or read-only on demand, for the real errors of a kernel."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


def _mount(*arguments: str | Path) -> None:
    result = subprocess.run(["mount", *arguments], check=False, capture_output=True)
    if result.returncode:
        pytest.skip("mounting needs root")


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "-l", path], check=True)


@contextmanager
def small_tmpfs(size_bytes: int) -> Iterator[Path]:
    """Mount a file system in memory that holds so much."""
    with tempfile.TemporaryDirectory(prefix="hsstore-test-") as directory:
        path = Path(directory)
        _mount("-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "tmpfs", path)
        try:
            yield path
        finally:
            _unmount(path)


def resize(path: Path, size_bytes: int) -> None:
    """Give a mounted tmpfs another size."""
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", path], check=True)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Let a directory refuse every change for a while; files that are open stay writable."""
    _mount("--bind", path, path)
    try:
        _mount("-o", "remount,bind,ro", path)
        yield
    finally:
        _unmount(path)


def fill(path: Path, free_bytes: int) -> Path:
    """Use up a file system but for so many bytes; removing the file gives them back."""
    status = os.statvfs(path)
    filler = path / "somebody else's"
    size = status.f_bavail * status.f_frsize - free_bytes
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return filler

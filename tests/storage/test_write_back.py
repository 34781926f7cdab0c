"""A shard goes to the disk as it grows: its writer waits for a slow disk, not its fsync."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

import hsstore.shard.writer
from hsstore.errors import OutputError
from hsstore.shard.writer import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WINDOW_BYTES = 1 << 16


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Make windows small, and note what is asked of the disk, on its way there."""
    monkeypatch.setattr(hsstore.shard.writer, "WINDOW_BYTES", WINDOW_BYTES)
    noted: list[tuple[str, int, int]] = []
    for name in ("start_writing", "wait_for_writing"):
        monkeypatch.setattr(hsstore.shard.writer, name, _noting(noted, name))
    return noted


def _noting(noted: list[tuple[str, int, int]], name: str) -> Callable[[int, int, int, Path], None]:
    original = getattr(hsstore.shard.writer, name)

    def call(descriptor: int, offset: int, size: int, path: Path) -> None:
        noted.append((name, offset, size))
        original(descriptor, offset, size, path)

    return call


def test_every_full_window_is_started_and_the_one_before_it_awaited(
    directory: Path, calls: list[tuple[str, int, int]]
) -> None:
    writer = ShardWriter(directory / "c.0", "run", 4)
    writer.append(0, bytes(WINDOW_BYTES - 1))
    before = list(calls)
    for chunk in (1, 2, 3):
        writer.append(chunk, os.urandom(WINDOW_BYTES))
    writer.seal()
    writer.publish()

    assert before == []
    assert calls == [
        ("start_writing", 0, WINDOW_BYTES),
        ("start_writing", WINDOW_BYTES, WINDOW_BYTES),
        ("wait_for_writing", 0, WINDOW_BYTES),
        ("start_writing", 2 * WINDOW_BYTES, WINDOW_BYTES),
        ("wait_for_writing", WINDOW_BYTES, WINDOW_BYTES),
    ]


def test_a_disk_that_fails_to_write_a_window_fails_the_append(
    directory: Path, calls: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int, offset: int, size: int, path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(hsstore.shard.writer, "wait_for_writing", broken)
    writer = ShardWriter(directory / "c.0", "run", 2)
    writer.append(0, bytes(WINDOW_BYTES))

    with pytest.raises(OutputError, match=r"cannot write .*c\.0: Input/output error"):
        writer.append(1, bytes(WINDOW_BYTES))
    writer.discard()

    assert list(directory.iterdir()) == []
